"""What a module's tests look at, two at a time: each takes one core for ten seconds."""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Result = TypeVar("Result")

# An idle machine takes ten seconds; one that is busy with other tests takes several times that.
SLACK_S = 60


@contextmanager
def side_by_side(tasks: Mapping[str, Callable[[], Result]]) -> Iterator[Callable[[str], Result]]:
    """Give a function that waits for the task of a name; the first call begins all of them.

    The one that it names begins first, so that a test that runs alone does not wait for the rest.
    """
    pool = ThreadPoolExecutor(max_workers=2)
    begun: dict[str, Future[Result]] = {}

    def result(name: str) -> Result:
        if not begun:
            for each in sorted(tasks, key=lambda task: task != name):
                begun[each] = pool.submit(_in_time, tasks[each])
        return begun[name].result()

    try:
        yield result
    finally:
        pool.shutdown(cancel_futures=True)


def _in_time(task: Callable[[], Result]) -> Result:
    begun = time.monotonic()
    result = task()
    took = time.monotonic() - begun
    assert took < SLACK_S, f"{took:.1f} s"
    return result
