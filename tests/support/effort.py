"""How much work a call is: its processor time, in what a loop takes on the same machine."""

import time
from collections.abc import Callable

# Of a loop that takes ten milliseconds or more.
TURNS = 1_000_000
# A full garbage collection takes as long once.
TRIES = 3


def turns(call: Callable[[], object]) -> float:
    """Return how many turns of an empty loop take as long as a call, in the quickest of some tries.

    The loop is timed before and after the call, since a busy machine changes its pace.
    """
    return min(_turns(call) for _ in range(TRIES))


def seconds(call: Callable[[], object]) -> float:
    """Return the processor time of a call."""
    begun = time.thread_time()
    call()
    return time.thread_time() - begun


def _turns(call: Callable[[], object]) -> float:
    before, took, after = seconds(_loop), seconds(call), seconds(_loop)
    return TURNS * took / max(before, after)


def _loop() -> None:
    for _ in range(TURNS):
        pass
