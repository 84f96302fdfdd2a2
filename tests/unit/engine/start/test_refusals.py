"""Whose fault a failed start is, by what vLLM and the libraries below it say."""

import errno
import json
from pathlib import Path

import pytest

from worker.engine.start.refusals import blamed, words
from worker.errors import MachineUnfit, StartFailed

# As CUDA, torch, vLLM, NCCL and the kernel word them.
MESSAGES: dict[str, list[str]] = json.loads(Path(__file__).with_name("refusals.json").read_text())
DIED = "Engine core initialization failed. Failed core proc(s): {'EngineCore_DP0': %d}"


@pytest.mark.parametrize("message", MESSAGES["of the machine"])
def test_what_a_machine_may_be_to_blame_for_is_answered_to_nobody(message: str) -> None:
    assert not blamed(RuntimeError(message), f"vLLM could not start m: {message}").everywhere


@pytest.mark.parametrize("message", MESSAGES["of what was asked"])
def test_what_any_machine_would_refuse_is_everybodys(message: str) -> None:
    failure = blamed(RuntimeError(message), f"vLLM could not start m: {message}")
    assert failure.everywhere
    assert failure.message == f"vLLM could not start m: {message}"


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
    written = "Try decreasing MAX_MODEL_LEN, or set TRUST_REMOTE_CODE=True for `FooModel`"
    assert words(ValueError(quoted)) == written
