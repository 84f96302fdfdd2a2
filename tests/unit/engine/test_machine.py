"""What vLLM needs of a machine (NVML is planted), and whose fault a failed start is."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm.model_executor.models import registry
from vllm.third_party import pynvml

from worker.engine import machine
from worker.engine.machine import check_driver
from worker.engine.seam.inspection import ELSEWHERE, by_forks, forked
from worker.engine.start.blame import blamed, quoting_settings
from worker.errors import MachineUnfit, StartFailed


@pytest.mark.parametrize(
    ("driver", "image"), [(13000, "13.0"), (13010, "13.0"), (12080, "12.9"), (13000, "12.9")]
)
def test_a_driver_of_the_same_major_version_or_later_will_do(driver: int, image: str) -> None:
    check_driver(driver, image)


def test_an_older_driver_is_this_machines_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[str]()
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: calls.append("begun"))
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: calls.append("ended"))
    monkeypatch.setattr(pynvml, "nvmlSystemGetCudaDriverVersion", lambda: 12080)
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "570.1")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(MachineUnfit, match=r"driver 570\.1 runs CUDA up to 12\.8.*for CUDA 13\.0"):
        machine._look_at_driver()
    assert calls == ["begun", "ended"]


def test_gpus_without_nvml_are_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    machine._look_at_driver()


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
    own = getattr(registry, ELSEWHERE)
    with by_forks():
        assert getattr(registry, ELSEWHERE)(os.getpid) != os.getpid()
        assert getattr(registry, ELSEWHERE) is not own
    assert getattr(registry, ELSEWHERE) is own


def test_a_vllm_that_has_moved_the_name_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(registry, ELSEWHERE)
    with by_forks():
        assert not hasattr(registry, ELSEWHERE)


# Whose fault a failed start is, by what vLLM and the libraries below it say


# As CUDA, torch, vLLM, NCCL and the kernel word them.
MESSAGES: dict[str, list[str]] = json.loads(Path(__file__).with_name("blame.json").read_text())
DIED = "Engine core initialization failed. Failed core proc(s): {'EngineCore_DP0': %d}"


@pytest.mark.parametrize("message", MESSAGES["of the machine"])
def test_what_a_machine_may_be_to_blame_for_is_answered_to_nobody(message: str) -> None:
    assert not blamed(RuntimeError(message), f"vLLM could not start m: {message}").everywhere


@pytest.mark.parametrize("message", MESSAGES["of what was asked"])
def test_what_any_machine_would_refuse_is_everybodys(message: str) -> None:
    failure = blamed(RuntimeError(message), f"vLLM could not start m: {message}")
    assert failure.everywhere
    assert failure.message == quoting_settings(f"vLLM could not start m: {message}")


@pytest.mark.parametrize(
    ("error", "everywhere"),
    [
        (ValueError("an odd rank"), True),
        (ModuleNotFoundError("No module named 'einops'"), True),
        (OSError("a is not a local folder and is not a valid model identifier"), True),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), True),
        (StartFailed("cores for no GPU"), True),
        (MachineUnfit("the driver is too old"), False),
        (AttributeError("no attribute"), False),
        (RuntimeError("something"), False),
        (OSError(errno.ESTALE, "Stale file handle"), False),
        (OSError(errno.ENOSPC, "voll"), False),
        (PermissionError(errno.EACCES, "Permission denied"), False),
        (ConnectionError("the hub"), False),
    ],
)
def test_of_an_error_in_this_process_its_class_decides(error: Exception, everywhere: bool) -> None:
    assert blamed(error, str(error)).everywhere is everywhere


def test_a_gpu_without_room_is_the_operators_fault_who_set_the_share() -> None:
    said = "Free memory on device cuda:0 is less than desired GPU memory utilization (0.99)"
    assert not blamed(ValueError(said), said, {"MAX_MODEL_LEN"}).everywhere
    assert blamed(ValueError(said), said, {"GPU_MEMORY_UTILIZATION"}).everywhere


@pytest.mark.parametrize(
    ("status", "everywhere"), [(1, True), (-9, True), (-11, False), (-6, False)]
)
def test_what_a_core_printed_before_a_crash_is_not_why(status: int, everywhere: bool) -> None:
    error = RuntimeError("ValueError: handled long ago")
    error.__cause__ = RuntimeError(DIED % status)
    assert blamed(error, str(error)).everywhere is everywhere


def test_a_core_that_was_killed_lacked_memory() -> None:
    failure = blamed(RuntimeError(DIED % -9), DIED % -9)
    assert failure.everywhere
    assert "memory is exhausted" in failure.message


def test_options_that_a_message_quotes_are_written_as_settings() -> None:
    quoted = "Try decreasing `max_model_len`, or set `trust_remote_code=True` for `FooModel`."
    written = "Try decreasing MAX_MODEL_LEN, or set TRUST_REMOTE_CODE=True for `FooModel`."
    assert blamed(ValueError(), quoted).message == written
