"""The stream of items from the engine's event loop to the reader's."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest
from support.engine.scripted import ScriptedEngine
from support.processes.background import HUNG_S, poll_until

from worker.bridge import Stream
from worker.errors import EngineDead, ShuttingDown

Loop = asyncio.AbstractEventLoop


@pytest.fixture
def engine_loop() -> Iterator[Loop]:
    with ScriptedEngine() as engine:
        yield engine.loop


class Source:
    """A source of numbers, ``pause`` seconds apart, which then raises, ends or hangs."""

    def __init__(self, count: int = 1, pause: float | None = None, then: Any = "hang") -> None:
        self._count, self._pause, self._then = count, pause, then
        # Set once the last number has been yielded.
        self.exhausted = threading.Event()
        self.closed_on: list[Loop] = []

    async def __call__(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(self._count):
                # Without a pause no other task runs between two numbers.
                if self._pause is not None:
                    await asyncio.sleep(self._pause)
                yield number
            self.exhausted.set()
            if isinstance(self._then, BaseException):
                raise self._then
            if self._then == "hang":
                await asyncio.Event().wait()
        finally:
            self.closed_on.append(asyncio.get_running_loop())


def finite_source(count: int, pause: float | None = None) -> Source:
    return Source(count, pause, then="end")


async def wait_until_exhausted(source: Source) -> None:
    assert await asyncio.to_thread(source.exhausted.wait, HUNG_S)


async def read_into(items: list[int], stream: Stream[int]) -> None:
    while (batch := await stream.read()) is not None:
        items += batch


async def read_all(stream: Stream[int]) -> list[int]:
    items: list[int] = []
    await read_into(items, stream)
    return items


# Reading:


@pytest.mark.parametrize("pause", [None, 0, 0.0005])
@pytest.mark.parametrize("count", [0, 300])
async def test_items_keep_their_order_and_no_item_is_lost(
    engine_loop: Loop, pause: float | None, count: int
) -> None:
    assert await read_all(Stream(finite_source(count, pause), engine_loop)) == list(range(count))


def test_a_reader_is_woken_once_for_all_waiting_items(engine_loop: Loop) -> None:
    loop = asyncio.SelectorEventLoop()
    wake, wake_ups = loop.call_soon_threadsafe, 0
    source = Source(1000)

    def count_call(*call: Any, **keys: Any) -> asyncio.Handle:
        nonlocal wake_ups
        wake_ups += 1
        return wake(*call, **keys)

    async def read() -> list[int] | None:
        stream = Stream(source, engine_loop)
        # Blocks the reader's loop, so that items pile up.
        assert source.exhausted.wait(HUNG_S)
        return await stream.read()

    loop.call_soon_threadsafe = count_call  # type: ignore[assignment,method-assign]  # counts calls
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(read()) == list(range(1000))
        assert wake_ups == 1


async def test_a_reader_is_woken_again_for_every_later_item(engine_loop: Loop) -> None:
    gates = [asyncio.Event() for _ in range(3)]

    async def source() -> AsyncGenerator[int, None]:
        for number, gate in enumerate(gates):
            await gate.wait()
            yield number

    stream = Stream(source, engine_loop)
    async with asyncio.timeout(HUNG_S):
        for number, gate in enumerate(gates):
            engine_loop.call_soon_threadsafe(gate.set)
            assert await stream.read() == [number]


async def test_a_read_that_does_not_wait_returns_the_items_that_have_arrived(
    engine_loop: Loop,
) -> None:
    stream = Stream(Source(), engine_loop)
    assert await stream.read() == [0]
    assert await stream.read(wait=False) == []


async def test_every_read_after_the_end_returns_none(engine_loop: Loop) -> None:
    stream = Stream(finite_source(2, 0.01), engine_loop)
    assert await read_all(stream) == [0, 1]
    assert [await stream.read(), await stream.read(wait=False)] == [None, None]


@pytest.mark.parametrize(
    ("raised", "error", "message"),
    [
        (LookupError("the source's own"), LookupError, "the source's own"),
        # A source that cancels itself is an error, not an end.
        (asyncio.CancelledError(), RuntimeError, "cancelled from within"),
    ],
)
async def test_every_read_after_the_last_item_raises_the_error_of_the_source(
    engine_loop: Loop, raised: BaseException, error: type[Exception], message: str
) -> None:
    stream = Stream(Source(20, then=raised), engine_loop)
    items: list[int] = []
    for _ in range(2):
        with pytest.raises(error, match=message):
            await read_into(items, stream)
    assert items == list(range(20))


# Cancelling:


@pytest.mark.parametrize("from_thread", [False, True])
async def test_cancelling_closes_the_source_on_its_own_loop(
    engine_loop: Loop, from_thread: bool
) -> None:
    source = Source()
    stream = Stream(source, engine_loop)
    assert await stream.read() == [0]
    if from_thread:
        await asyncio.to_thread(stream.cancel)
    else:
        stream.cancel()
    await poll_until(lambda: source.closed_on == [engine_loop])
    assert await stream.read() is None


async def test_a_second_cancel_does_not_interrupt_the_cleanup_of_the_source(
    engine_loop: Loop,
) -> None:
    steps: list[str] = []
    cancelled_again = threading.Event()

    async def source() -> AsyncGenerator[int, None]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            steps.append("begun")
            await asyncio.to_thread(cancelled_again.wait, HUNG_S)
            steps.append("done")

    stream = Stream(source, engine_loop)
    await stream.read()
    stream.cancel()
    await poll_until(lambda: steps == ["begun"])
    stream.cancel()
    engine_loop.call_soon_threadsafe(cancelled_again.set)
    assert await read_all(stream) == []
    assert steps == ["begun", "done"]


async def test_cancelling_after_the_engines_loop_is_closed_is_harmless() -> None:
    engine_loop = asyncio.new_event_loop()
    stream = Stream(finite_source(1), engine_loop)
    engine_loop.close()
    stream.cancel()
    assert await stream.read(wait=False) == []


# Failing:


async def test_a_failed_stream_returns_its_waiting_items_then_raises_its_first_error(
    engine_loop: Loop,
) -> None:
    source = Source(100)
    stream = Stream(source, engine_loop)
    await wait_until_exhausted(source)
    stream.fail(ShuttingDown())
    stream.fail(EngineDead())
    await poll_until(lambda: source.closed_on)
    assert await stream.read() == list(range(100))
    for _ in range(2):
        with pytest.raises(ShuttingDown):
            await stream.read()


async def test_a_failure_wakes_a_waiting_reader(engine_loop: Loop) -> None:
    source = Source(0)
    stream = Stream(source, engine_loop)
    reading = asyncio.create_task(stream.read())
    await wait_until_exhausted(source)
    await asyncio.to_thread(stream.fail, ShuttingDown())
    async with asyncio.timeout(HUNG_S):
        with pytest.raises(ShuttingDown):
            await reading


async def test_a_stream_can_fail_before_its_first_item(engine_loop: Loop) -> None:
    stream = Stream(Source(0), engine_loop)
    stream.fail(ShuttingDown())
    with pytest.raises(ShuttingDown):
        await stream.read()


async def test_a_cancelled_stream_raises_no_error(engine_loop: Loop) -> None:
    stream = Stream(Source(0), engine_loop)
    stream.cancel()
    stream.fail(ShuttingDown())
    assert await stream.read() is None


async def test_cancelling_or_failing_a_finished_stream_has_no_effect(engine_loop: Loop) -> None:
    stream = Stream(finite_source(1), engine_loop)
    assert await read_all(stream) == [0]
    stream.cancel()
    stream.fail(ShuttingDown())
    assert await stream.read() is None


def test_a_source_runs_to_its_end_although_the_readers_loop_is_closed(engine_loop: Loop) -> None:
    reader_closed, source_done = threading.Event(), threading.Event()
    reported: list[Any] = []
    engine_loop.call_soon_threadsafe(
        engine_loop.set_exception_handler, lambda _, context: reported.append(context)
    )

    async def source() -> AsyncGenerator[int, None]:
        yield 1
        await asyncio.to_thread(reader_closed.wait, HUNG_S)
        yield 2
        source_done.set()

    async def read() -> None:
        assert await Stream(source, engine_loop).read() == [1]

    asyncio.run(read())
    reader_closed.set()
    assert source_done.wait(HUNG_S)
    assert reported == []
