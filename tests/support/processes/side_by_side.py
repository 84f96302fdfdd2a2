"""What a module's tests look at, two at a time: each takes one core for ten seconds."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Result = TypeVar("Result")


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
                begun[each] = pool.submit(tasks[each])
        return begun[name].result()

    try:
        yield result
    finally:
        pool.shutdown(cancel_futures=True)
