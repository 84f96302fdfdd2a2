"""Streams items from the engine's event loop to another loop, which can cancel the stream.

How a cancelled job frees its slot in the engine: the platform's cancel ends the job's task, or
closes the generator of ``Worker.handle``, and ``call_at_task_end``, which ``Worker._open_stream``
enters, calls ``Stream.cancel`` in both cases. On the engine's loop, that cancels the task that
iterates the source, whose generators close from the inside out. For a raw job, vLLM's generator
then aborts the request. On the OpenAI path they are those of
``dialects.openai.forward._call_engine``, ``VllmServer.call`` and ``asgi.call_app``, which tells
vLLM's app that its client has disconnected, and the app aborts.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# Function that passes an item to the reader of the stream whose source runs in this context, as a
# yield does, but without a switch to the task that iterates the source.
pass_item: ContextVar[Callable[[Any], None]] = ContextVar("pass_item")


class Stream(Generic[T]):
    """A stream of items that are produced on one event loop and read on another.

    A task on the engine's loop iterates the source. It wakes the reader's loop once for all items
    that have arrived: waking another thread costs more than an item.
    """

    def __init__(
        self, source: Callable[[], AsyncGenerator[T, None]], engine_loop: asyncio.AbstractEventLoop
    ) -> None:
        """Start iterating ``source()`` on the engine's loop; call this on the reader's loop."""
        self._source = source
        self._engine_loop = engine_loop
        self._reader_loop = asyncio.get_running_loop()
        self._items: deque[T] = deque()
        self._items_arrived = asyncio.Event()
        self._signalled = False
        self._ended = False
        self._error: BaseException | None = None
        self._pump_task: asyncio.Task[None] | None = None
        self._cancelled = False
        engine_loop.call_soon_threadsafe(self._start_pump)

    async def read(self, *, wait: bool = True) -> list[T] | None:
        """Return the items that have arrived, possibly none; return None at the end.

        ``wait`` is whether to wait for an item or the end.

        Raises:
            Exception: Any exception of the source, after all its items were returned.
        """
        if wait and not self._items and not self._ended:
            await self._items_arrived.wait()
        self._items_arrived.clear()
        # Clear before taking the items, so that an item that arrives in between sends a signal.
        self._signalled = False
        ended = self._ended
        items = [self._items.popleft() for _ in range(len(self._items))]
        if items or not ended:
            return items
        if self._error is not None:
            raise self._error
        return None

    def cancel(self) -> None:
        """Close the source, from any thread; does nothing after the source has ended."""
        if not self._cancelled and not self._ended:
            self._cancelled = True
            with contextlib.suppress(RuntimeError):  # the engine's loop is closed: nothing runs
                self._engine_loop.call_soon_threadsafe(self._cancel_pump)

    def fail(self, error: Exception) -> None:
        """Close the source; ``read`` raises this error after the items that have arrived.

        Can be called from any thread; does nothing after the source has ended.
        """
        if not self._cancelled and not self._ended:
            self._error = error
            self.cancel()

    # The methods below run on the engine's loop.

    def _start_pump(self) -> None:
        self._pump_task = self._engine_loop.create_task(self._pump())
        self._pump_task.add_done_callback(self._on_pump_done)

    def _cancel_pump(self) -> None:
        if self._pump_task is not None:
            self._pump_task.cancel()

    async def _pump(self) -> None:
        pass_item.set(self._add_item)
        async with contextlib.aclosing(self._source()) as source:
            async for item in source:
                self._add_item(item)

    def _add_item(self, item: T) -> None:
        self._items.append(item)
        self._wake_reader()

    def _on_pump_done(self, pump: asyncio.Task[None]) -> None:
        if not pump.cancelled():
            self._error = pump.exception()
        elif not self._cancelled:
            self._error = RuntimeError("the source was cancelled from within")
        self._ended = True
        self._signalled = False
        self._wake_reader()

    def _wake_reader(self) -> None:
        if not self._signalled:
            self._signalled = True
            with contextlib.suppress(RuntimeError):  # the reader's loop is closed
                self._reader_loop.call_soon_threadsafe(self._items_arrived.set)


@contextlib.contextmanager
def call_at_task_end(callback: Callable[[], object]) -> Iterator[None]:
    """Call a function when this block ends, and also if the current task ends within it.

    The task of a cancelled job is usually suspended in the SDK's POST request: the generator is
    dropped without being closed, and its ``finally`` blocks don't run while the SDK refers to it.
    """
    task = asyncio.current_task()
    assert task is not None  # for the type checker: a coroutine runs in a task

    def on_task_done(_: asyncio.Task[Any]) -> None:
        callback()

    task.add_done_callback(on_task_done)
    try:
        yield
    finally:
        task.remove_done_callback(on_task_done)
        callback()
