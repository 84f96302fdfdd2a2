"""Runs asyncio for those who wait without it, also where a loop runs already (notebooks)."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def waited(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of some work, which runs in a thread of its own.

    Ctrl-C cancels the work, and waits until it has tidied up; a second one does not wait.
    """
    loop = asyncio.new_event_loop()
    task = loop.create_task(work)
    ended: Future[None] = Future()

    def run() -> None:
        try:
            loop.run_until_complete(asyncio.wait({task}))
        finally:
            loop.close()
            ended.set_result(None)

    try:
        # Its start can be interrupted, too: the work runs by then.
        threading.Thread(target=run, name="llm", daemon=True).start()
        ended.result()
    except KeyboardInterrupt:
        loop.call_soon_threadsafe(task.cancel)
        ended.result()
        raise
    return task.result()
