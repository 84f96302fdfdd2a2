"""Limits the time of a block of code, also while it waits for a response."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class OutOfTime(BaseException):
    """A time limit is over. Like KeyboardInterrupt, it is no Exception, so no client retries it."""


@contextmanager
def limit_time(seconds: float) -> Iterator[None]:
    """Raise ``OutOfTime`` in the main thread if the block takes longer. Limits can't be nested."""
    start = time.monotonic()
    previous = signal.signal(signal.SIGALRM, _raise_out_of_time)
    other_s, _ = signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        if other_s:
            # A timer of the caller, such as a test runner's.
            signal.setitimer(signal.ITIMER_REAL, max(other_s - (time.monotonic() - start), 0.001))


def _raise_out_of_time(number: int, frame: FrameType | None) -> None:
    raise OutOfTime("the time limit is over")
