"""What vLLM needs of a machine (NVML is planted), and whose fault a failed start is."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from vllm.model_executor.models import registry
from vllm.third_party import pynvml

from worker.engine import machine
from worker.engine.seam.inspection import by_forks, forked
from worker.engine.seam.patches import INSPECT
from worker.errors import MachineUnfit


def plant_driver(monkeypatch: pytest.MonkeyPatch, newest: int, image: str) -> list[str]:
    """Plant a driver and torch's CUDA; the list gets the calls that begin and end a look."""
    calls = list[str]()
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: calls.append("begun"))
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: calls.append("ended"))
    monkeypatch.setattr(pynvml, "nvmlSystemGetCudaDriverVersion", lambda: newest)
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "570.1")
    monkeypatch.setattr(torch.version, "cuda", image)
    return calls


@pytest.mark.parametrize(
    ("driver", "image"), [(13000, "13.0"), (13010, "13.0"), (12080, "12.9"), (13000, "12.9")]
)
def test_a_driver_of_the_same_major_version_or_later_will_do(
    driver: int, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = plant_driver(monkeypatch, driver, image)
    machine._check_driver()
    assert calls == ["begun", "ended"]


def test_an_older_driver_is_this_machines_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = plant_driver(monkeypatch, 12080, "13.0")
    with pytest.raises(MachineUnfit, match=r"driver 570\.1 runs CUDA up to 12\.8.*for CUDA 13\.0"):
        machine._check_driver()
    assert calls == ["begun", "ended"]


def test_gpus_without_nvml_are_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    machine._check_driver()


def test_a_missing_library_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.this_machine().cpu
    monkeypatch.setattr(machine, "_NUMA", "libnuma-that-is-not-there.so.1")
    with pytest.raises(MachineUnfit, match=r"needs libnuma-that.*apt-get install libnuma1"):
        machine.this_machine()


def refuse(_: Callable[[], Any]) -> None:
    pytest.fail("what can be answered in a fork is asked of vLLM")


def test_a_function_runs_in_a_fork_which_has_all_that_this_process_has() -> None:
    here = object()
    pid, same = forked(lambda: (os.getpid(), id(here)), refuse)
    assert pid != os.getpid()
    assert same == id(here)


@pytest.mark.parametrize(
    "look", [lambda: 1 // 0, lambda: os._exit(1), lambda: (_ for _ in ())], ids=str
)
def test_a_failed_fork_is_silent(
    look: Callable[[], Any], capfd: pytest.CaptureFixture[str]
) -> None:
    assert forked(look, lambda asked: asked is look) is True
    assert capfd.readouterr() == ("", "")


def test_vllm_looks_in_forks_during_the_block_only() -> None:
    own = getattr(registry, INSPECT.name)
    with by_forks():
        assert getattr(registry, INSPECT.name)(os.getpid) != os.getpid()
        assert getattr(registry, INSPECT.name) is not own
    assert getattr(registry, INSPECT.name) is own
