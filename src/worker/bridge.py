"""A stream from the engine's event loop to the SDK's, and its cancellation back."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Stream(Generic[T]):
    """One answer, from one loop to the other.

    A task on the engine's loop iterates the source. The reader's loop is woken once for all items
    that it waits for: to wake another thread costs more than an item.
    """

    def __init__(
        self, source: Callable[[], AsyncGenerator[T, None]], engine_loop: asyncio.AbstractEventLoop
    ) -> None:
        """Start to iterate ``source()`` on the engine's loop; call on the reader's loop."""
        self._source = source
        self._engine_loop = engine_loop
        self._reader_loop = asyncio.get_running_loop()
        self._items: deque[T] = deque()
        self._enough = 1
        self._arrived = asyncio.Event()
        self._signalled = False
        self._ended = False
        self._error: BaseException | None = None
        self._pump_task: asyncio.Task[None] | None = None
        self._cancelled = False
        engine_loop.call_soon_threadsafe(self._start)

    async def read(self, patience: float | None = None, enough: int = 1) -> list[T] | None:
        """Return the items that have arrived, if any; None at the end.

        Args:
            patience: the longest to wait, in seconds; None: until there are enough.
            enough: how many items to wait for.

        Raises:
            Exception: what the source raised, after all its items were returned.
        """
        # Set before the items are counted, so that one that arrives in between signals.
        self._enough = enough
        if len(self._items) < enough and not self._ended:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._arrived.wait()
        self._arrived.clear()
        # Cleared before the items are taken, so that one that arrives in between signals again.
        self._signalled = False
        ended = self._ended
        items = [self._items.popleft() for _ in range(len(self._items))]
        if items or not ended:
            return items
        if self._error is not None:
            raise self._error
        return None

    def cancel(self) -> None:
        """Close the source, from any thread; harmless once it has ended."""
        if not self._cancelled and not self._ended:
            self._cancelled = True
            with contextlib.suppress(RuntimeError):  # the engine's loop is closed: nothing runs
                self._engine_loop.call_soon_threadsafe(self._stop)

    def end(self, error: Exception) -> None:
        """Close the source: ``read`` raises this error after the items that have arrived.

        From any thread; harmless once the source has ended.
        """
        if not self._cancelled and not self._ended:
            self._error = error
            self.cancel()

    # On the engine's loop:

    def _start(self) -> None:
        self._pump_task = self._engine_loop.create_task(self._pump())
        self._pump_task.add_done_callback(self._end)

    def _stop(self) -> None:
        if self._pump_task is not None:
            self._pump_task.cancel()

    async def _pump(self) -> None:
        async with contextlib.aclosing(self._source()) as source:
            async for item in source:
                self._items.append(item)
                if len(self._items) >= self._enough:
                    self._signal()

    def _end(self, pump: asyncio.Task[None]) -> None:
        if not pump.cancelled():
            self._error = pump.exception()
        elif not self._cancelled:
            self._error = RuntimeError("the source was cancelled from within")
        self._ended = True
        self._signalled = False
        self._signal()

    def _signal(self) -> None:
        if not self._signalled:
            self._signalled = True
            with contextlib.suppress(RuntimeError):  # the reader's loop is closed: nobody reads
                self._reader_loop.call_soon_threadsafe(self._arrived.set)


@contextlib.contextmanager
def at_end_of_task(call: Callable[[], object]) -> Iterator[None]:
    """Call at the end of this block, and at the end of the task that runs it.

    The task of a cancelled job is usually suspended in the SDK's POST: the generator is dropped
    without being closed, and none of its ``finally`` blocks runs while the SDK keeps it.
    """
    task = asyncio.current_task()
    assert task is not None  # for the type checker: a coroutine runs in a task

    def end(_: asyncio.Task[Any]) -> None:
        call()

    task.add_done_callback(end)
    try:
        yield
    finally:
        task.remove_done_callback(end)
        call()
