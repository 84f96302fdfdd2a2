"""SIGTERM and the end of the parent end a training, at once or after its step."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support import ROOT

from worker.trainer.spec import Exit

LIMIT_S = 60
PROGRAM = """
import time
from worker.trainer.interruptions import Interruptions
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
        stdin=subprocess.PIPE,
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


@pytest.mark.parametrize("then", ["", PATIENT])
def test_the_end_of_the_parent_ends_at_once(then: str) -> None:
    with running(then, BUSY) as process:
        assert process.stdin
        process.stdin.write("anything")
        process.stdin.close()
        assert process.wait(LIMIT_S) == Exit.STOPPED
