"""What vLLM needs of a machine: a GPU's driver (NVML is planted), or a CPU's library."""

import pytest
import torch
from vllm.third_party import pynvml

from worker.engine import machine
from worker.engine.machine import check_driver
from worker.errors import MachineUnfit


@pytest.mark.parametrize(
    ("driver", "image"), [(13000, "13.0"), (13010, "13.0"), (12080, "12.9"), (13000, "12.9")]
)
def test_a_driver_of_the_same_major_version_or_later_will_do(driver: int, image: str) -> None:
    check_driver(driver, image)


def test_an_older_driver_is_this_machines_fault() -> None:
    with pytest.raises(MachineUnfit, match=r"driver 570.1 runs CUDA up to 12.8.*for CUDA 13.0"):
        check_driver(12080, "13.0", "570.1")


def test_nvml_is_asked_for_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[str]()
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: calls.append("begun"))
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: calls.append("ended"))
    monkeypatch.setattr(pynvml, "nvmlSystemGetCudaDriverVersion", lambda: 12080)
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "570.1")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(MachineUnfit, match=r"driver 570\.1"):
        machine._look_at_driver()
    assert calls == ["begun", "ended"]


def test_gpus_without_nvml_are_not_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    machine._look_at_driver()


def test_a_missing_library_of_the_cpu_build_is_told_with_its_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert machine.this_machine().cpu
    monkeypatch.setattr(machine, "_NUMA", "libnuma-that-is-not-there.so.1")
    with pytest.raises(MachineUnfit, match=r"needs libnuma-that.*apt-get install libnuma1"):
        machine.this_machine()
