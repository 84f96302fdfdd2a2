"""Interruptions of a training: SIGTERM, and a volume that fails."""

import errno
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from support import ROOT

from trainer.interruptions import VolumeFailure, describe_volume_failure
from worker.fine_tunes.spec import ExitStatus

LIMIT_S = 60
PROGRAM = """
import time
from trainer.interruptions import SigtermWatcher
watcher = SigtermWatcher()
watcher.watch()
{then}
print("ready", flush=True)
{wait}
"""
DEFER_EXIT = "watcher.defer_exit()"
# A call that delays Python's own signal handlers, as calls of torch do.
BUSY = "__import__('hashlib').pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)"
WAIT_FOR_REQUEST = """
while not watcher.is_stop_requested:
    time.sleep(0.01)
print("requested", flush=True)
time.sleep(1000)
"""


@contextmanager
def run_program(then: str, wait: str) -> "Iterator[subprocess.Popen[str]]":
    program = PROGRAM.format(then=then, wait=wait)
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(ROOT / "src")},
    )
    with process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def test_sigterm_ends_the_process_immediately_before_the_first_step() -> None:
    with run_program("", BUSY) as process:
        process.terminate()
        assert process.wait(LIMIT_S) == ExitStatus.STOPPED


def test_a_deferred_sigterm_is_a_request_and_a_second_one_ends_the_process() -> None:
    with run_program(DEFER_EXIT, WAIT_FOR_REQUEST) as process:
        process.terminate()
        assert process.stdout
        assert process.stdout.readline() == "requested\n"
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == ExitStatus.STOPPED


def catch_error(fail: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - each call raises its own
        fail()
    return raised.value


def write_in_background() -> None:
    try:
        FULL.write_bytes(b"x")
    except OSError:
        raise RuntimeError("something else") from None


# Every write to this device fails because no space is left.
FULL = Path("/dev/full")


@pytest.mark.parametrize(
    ("error", "is_volume_failure"),
    [
        (catch_error(lambda: FULL.write_bytes(b"x")), True),
        (catch_error(lambda: torch.save({"a": torch.zeros(1000)}, FULL)), True),
        (catch_error(write_in_background), True),
        # safetensors drops the error number.
        (RuntimeError("Error while serializing: I/O error: No space (os error 28)"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (VolumeFailure("the volume is full"), True),
        (RuntimeError("mat1 and mat2"), False),
        (FileNotFoundError(errno.ENOENT, "No such file"), False),
        (KeyError("a"), False),
    ],
    ids=str,
)
def test_an_error_that_is_caused_by_the_volume_is_recognized(
    error: Exception, is_volume_failure: bool
) -> None:
    reason = describe_volume_failure(error)
    assert (reason is not None) is is_volume_failure
    assert reason is None or ("volume" in reason and "\n" not in reason)
