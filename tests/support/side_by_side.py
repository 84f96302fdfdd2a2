"""Runs slow tasks of a test module, two at a time."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

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
