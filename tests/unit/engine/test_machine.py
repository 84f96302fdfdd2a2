"""Requirements of vLLM on a machine, with a fake NVML, and inspections of models in forks."""

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.model_executor.models import registry
from vllm.third_party import pynvml

from worker.engine import machine
from worker.engine.seam.imports import call_in_fork, inspect_in_forks
from worker.engine.seam.patches import INSPECT
from worker.errors import MachineUnfit

GPU = machine.Gpu("A40", 48)


def fake_driver(monkeypatch: pytest.MonkeyPatch, driver: int, cuda: str) -> list[str]:
    """Fake a GPU, its driver and torch's CUDA version; return the calls that begin and end NVML."""
    calls = list[str]()
    platform = SimpleNamespace(
        is_unspecified=lambda: False,
        is_cpu=lambda: False,
        is_cuda=lambda: True,
        device_count=lambda: 1,
        get_device_name=lambda _: GPU.name,
        get_device_total_memory=lambda _: GPU.memory,
    )
    monkeypatch.setattr(machine, "import_from_vllm", lambda _: platform)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: calls.append("begun"))
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: calls.append("ended"))
    monkeypatch.setattr(pynvml, "nvmlSystemGetCudaDriverVersion", lambda: driver)
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "570.1")
    monkeypatch.setattr(torch.version, "cuda", cuda)
    return calls


@pytest.mark.parametrize(
    ("driver", "image"), [(13000, "13.0"), (13010, "13.0"), (12080, "12.9"), (13000, "12.9")]
)
def test_a_driver_of_the_same_major_version_or_later_is_accepted(
    driver: int, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = fake_driver(monkeypatch, driver, image)
    assert machine.detect_machine() == machine.Machine(cpu=False, gpus=(GPU,))
    assert calls == ["begun", "ended"]


def test_an_older_driver_makes_the_machine_unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_driver(monkeypatch, 12080, "13.0")
    with pytest.raises(MachineUnfit, match=r"driver 570\.1 runs CUDA up to 12\.8.*for CUDA 13\.0"):
        machine.detect_machine()
    assert calls == ["begun", "ended"]


def test_gpus_without_nvml_are_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    fake_driver(monkeypatch, 12080, "13.0")
    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    assert machine.detect_machine().gpus == (GPU,)


def test_a_missing_library_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.detect_machine().cpu
    monkeypatch.setattr(machine, "_NUMA", "libnuma-that-is-not-there.so.1")
    with pytest.raises(MachineUnfit, match=r"needs libnuma-that.*apt-get install libnuma1"):
        machine.detect_machine()


def fail_if_called(_: Callable[[], Any]) -> None:
    pytest.fail("the function did not run in the fork")


def test_a_function_runs_in_a_fork_with_the_memory_of_this_process() -> None:
    marker = object()
    pid, same = call_in_fork(lambda: (os.getpid(), id(marker)), fail_if_called)
    assert pid != os.getpid()
    assert same == id(marker)


@pytest.mark.parametrize(
    "function", [lambda: 1 // 0, lambda: os._exit(1), lambda: (_ for _ in ())], ids=str
)
def test_a_failed_fork_is_silent(
    function: Callable[[], Any], capfd: pytest.CaptureFixture[str]
) -> None:
    assert call_in_fork(function, lambda original: original is function) is True
    assert capfd.readouterr() == ("", "")


def test_vllm_inspects_models_in_forks_only_within_the_block() -> None:
    own = getattr(registry, INSPECT.name)
    with inspect_in_forks():
        assert getattr(registry, INSPECT.name)(os.getpid) != os.getpid()
        assert getattr(registry, INSPECT.name) is not own
    assert getattr(registry, INSPECT.name) is own
