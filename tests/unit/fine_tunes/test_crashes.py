"""What callers are told of a process that trains and has crashed: a reason, and no more."""

import signal

import pytest

from worker import masking
from worker.fine_tunes.crashes import LONGEST, reason_of

TRACE = 'Traceback (most recent call last):\n  File "/opt/worker/a.py", line 5, in run\n    run()\n'


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (f"{TRACE}ValueError: wrong\n", "ValueError: wrong"),
        (f"{TRACE}OSError: no file /models/x/y.bin here\n", "OSError: no file ... here"),
        ("RuntimeError: 1/2 of a/b at https://host/path\n\n", "1/2 of a/b at https://host/path"),
        ("KeyError: 5\n/opt/a.py:3: UserWarning: old\n  warn()\n", "KeyError: 5"),
        ("", "status 1"),
        ("\n \n", "status 1"),
    ],
    ids=str,
)
def test_the_last_line_is_the_reason_without_paths(said: str, told: str) -> None:
    message = reason_of(1, said)
    assert message.startswith("The process that trains has crashed: ")
    assert message.endswith(told)


def test_secrets_are_masked_and_a_long_reason_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_secrets", [])
    masking.hide(["sk-canary-of-a-key"])
    message = reason_of(1, "ValueError: sk-canary-of-a-key " + "x" * 5_000)
    assert "canary" not in message
    assert len(message) < LONGEST + 100


OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried",
    "RuntimeError: DefaultCPUAllocator: can't allocate memory",
)


@pytest.mark.parametrize("line", OUT_OF_MEMORY)
def test_a_lack_of_memory_comes_with_what_to_change(line: str) -> None:
    message = reason_of(1, f"{TRACE}{line}\n")
    assert "FINE_TUNE_MAX_LENGTH" in message
    assert line in message


def test_a_signal_is_named_and_the_kernels_is_explained() -> None:
    assert "SIGSEGV" in reason_of(-signal.SIGSEGV, "")
    assert "memory is full" in reason_of(-signal.SIGKILL, "")


def test_a_real_time_signal_is_named_by_its_number() -> None:
    assert reason_of(-40, "") == "The process that trains was ended by signal 40."
