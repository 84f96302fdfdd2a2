"""Measures the processor time of calls, and runs slow tasks two at a time."""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

# Iterations of a loop that takes at least ten milliseconds.
ITERATIONS = 1_000_000
# The quickest measurement counts: a full garbage collection can take as long as a call.
TRIES = 3


def loop_iterations(call: Callable[[], object]) -> float:
    """Return the number of iterations of an empty loop that take as long as a call.

    The call is measured several times, and the quickest one counts. The loop is measured before and
    after each call, since a busy machine changes its pace.
    """
    return min(_measure(call) for _ in range(TRIES))


def cpu_seconds(call: Callable[[], object]) -> float:
    """Return the processor time of a call."""
    start = time.thread_time()
    call()
    return time.thread_time() - start


def _measure(call: Callable[[], object]) -> float:
    before, call_time, after = cpu_seconds(_run_loop), cpu_seconds(call), cpu_seconds(_run_loop)
    return ITERATIONS * call_time / max(before, after)


def _run_loop() -> None:
    for _ in range(ITERATIONS):
        pass


Result = TypeVar("Result")


@contextmanager
def run_concurrently(
    tasks: Mapping[str, Callable[[], Result]],
) -> Iterator[Callable[[str], Result]]:
    """Yield a function that returns a task's result by its name; its first call starts all tasks.

    The requested task starts first, so a test that runs alone does not wait for the others.
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
