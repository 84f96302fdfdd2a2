"""What ends a training from outside: SIGTERM, and a volume that fails."""

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

from trainer.endings import VolumeFailure, volume_failure
from trainer.spec import Exit

LIMIT_S = 60
PROGRAM = """
import time
from trainer.endings import Interruptions
interruptions = Interruptions()
interruptions.watch()
{then}
print("ready", flush=True)
{wait}
"""
PATIENT = "interruptions.be_patient()"
# A call that Python's own handlers of signals wait for, as they do for torch's.
BUSY = "__import__('hashlib').pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)"
ASKED = """
while not interruptions.asked:
    time.sleep(0.01)
print("asked", flush=True)
time.sleep(1000)
"""


@contextmanager
def running(then: str, wait: str) -> "Iterator[subprocess.Popen[str]]":
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


@pytest.mark.parametrize("wait", ["time.sleep(1000)", BUSY])
def test_sigterm_ends_at_once_before_the_first_step(wait: str) -> None:
    with running("", wait) as process:
        process.terminate()
        assert process.wait(LIMIT_S) == Exit.STOPPED


def test_sigterm_is_asked_for_later_and_ends_at_once_when_it_comes_again() -> None:
    with running(PATIENT, ASKED) as process:
        process.terminate()
        assert process.stdout
        assert process.stdout.readline() == "asked\n"
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == Exit.STOPPED


def failed(fail: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - each has its own
        fail()
    return raised.value


def in_the_background() -> None:
    try:
        FULL.write_bytes(b"x")
    except OSError:
        raise RuntimeError("something else") from None


# Each write to it finds no space left.
FULL = Path("/dev/full")


@pytest.mark.parametrize(
    ("error", "is_volumes"),
    [
        (failed(lambda: FULL.write_bytes(b"x")), True),
        (failed(lambda: torch.save({"a": torch.zeros(1000)}, FULL)), True),
        (failed(in_the_background), True),
        # safetensors keeps no number.
        (RuntimeError("Error while serializing: I/O error: No space (os error 28)"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (VolumeFailure("the volume is full"), True),
        (RuntimeError("mat1 and mat2"), False),
        (FileNotFoundError(errno.ENOENT, "No such file"), False),
        (KeyError("a"), False),
    ],
    ids=str,
)
def test_a_volume_that_fails_is_seen_in_every_error(error: Exception, is_volumes: bool) -> None:
    reason = volume_failure(error)
    assert (reason is not None) is is_volumes
    assert reason is None or ("volume" in reason and "\n" not in reason)
