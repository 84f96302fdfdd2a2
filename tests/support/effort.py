"""What work costs, and a way to wait less for it: tasks that run two at a time."""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

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


Result = TypeVar("Result")


@contextmanager
def side_by_side(tasks: Mapping[str, Callable[[], Result]]) -> Iterator[Callable[[str], Result]]:
    """Yield a function that returns the result of a task, by its name; its first call starts all.

    The task that it asks for starts first: a test that runs alone does not wait for the others.
    """
    pool = ThreadPoolExecutor(max_workers=2)
    started: dict[str, Future[Result]] = {}

    def result(name: str) -> Result:
        if not started:
            for task in sorted(tasks, key=lambda task: task != name):
                started[task] = pool.submit(tasks[task])
        return started[name].result()

    try:
        yield result
    finally:
        pool.shutdown(cancel_futures=True)
