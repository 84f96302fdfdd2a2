"""The stream between the engine's event loop and the reader's."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest
from support.engine.scripted import ScriptedEngine
from support.processes.background import HUNG_S, eventually

from worker.bridge import Stream
from worker.errors import EngineDead, ShuttingDown

Loop = asyncio.AbstractEventLoop


@pytest.fixture
def engine_loop() -> Iterator[Loop]:
    with ScriptedEngine() as engine:
        yield engine.loop


class Source:
    """Yields numbers, ``pause`` seconds apart; then raises, ends or, by default, hangs."""

    def __init__(self, count: int = 1, pause: float | None = None, then: Any = "hang") -> None:
        self._count, self._pause, self._then = count, pause, then
        # Set when all have been taken from it.
        self.taken = threading.Event()
        self.closed_on: list[Loop] = []

    async def __call__(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(self._count):
                # With None nothing else runs in between.
                if self._pause is not None:
                    await asyncio.sleep(self._pause)
                yield number
            self.taken.set()
            if isinstance(self._then, BaseException):
                raise self._then
            if self._then == "hang":
                await asyncio.Event().wait()
        finally:
            self.closed_on.append(asyncio.get_running_loop())


def ending(count: int, pause: float | None = None) -> Source:
    return Source(count, pause, then="end")


async def taken(source: Source) -> None:
    assert await asyncio.to_thread(source.taken.wait, HUNG_S)


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
async def test_items_keep_their_order_and_none_is_lost(
    engine_loop: Loop, pause: float | None, count: int
) -> None:
    assert await read_all(Stream(ending(count, pause), engine_loop)) == list(range(count))


def test_a_reader_is_woken_once_for_all_that_has_piled_up(engine_loop: Loop) -> None:
    loop = asyncio.SelectorEventLoop()
    wake, wake_ups = loop.call_soon_threadsafe, 0
    source = Source(1000)

    def counted(*call: Any, **keys: Any) -> asyncio.Handle:
        nonlocal wake_ups
        wake_ups += 1
        return wake(*call, **keys)

    async def read() -> list[int] | None:
        stream = Stream(source, engine_loop)
        # Blocks the reader's loop, so that items pile up.
        assert source.taken.wait(HUNG_S)
        return await stream.read()

    loop.call_soon_threadsafe = counted  # type: ignore[assignment,method-assign]  # counts calls
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(read()) == list(range(1000))
        assert wake_ups == 1


async def test_a_reader_who_looked_is_woken_again(engine_loop: Loop) -> None:
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


async def test_patience_ends_with_an_empty_list(engine_loop: Loop) -> None:
    stream = Stream(Source(), engine_loop)
    assert await stream.read() == [0]
    assert await stream.read(patience=0.01) == []
    assert await stream.read(patience=0) == []


async def test_a_reader_waits_for_enough_or_until_its_patience_ends(engine_loop: Loop) -> None:
    waits, go_on = threading.Event(), threading.Event()

    async def source() -> AsyncGenerator[int, None]:
        yield 0
        yield 1
        waits.set()
        await asyncio.to_thread(go_on.wait, HUNG_S)
        yield 2
        yield 3

    stream = Stream(source, engine_loop)
    assert await asyncio.to_thread(waits.wait, HUNG_S)
    assert await stream.read(0.05, enough=3) == [0, 1]
    asyncio.get_running_loop().call_later(0.01, go_on.set)
    assert await stream.read(HUNG_S, enough=2) == [2, 3]


async def test_the_end_comes_to_a_reader_that_waits_for_more(engine_loop: Loop) -> None:
    stream = Stream(ending(2, 0.01), engine_loop)
    assert await stream.read(HUNG_S, enough=3) == [0, 1]
    assert [await stream.read(5, enough=3), await stream.read()] == [None, None]


@pytest.mark.parametrize(
    ("raised", "error", "message"),
    [
        (LookupError("the source's own"), LookupError, "the source's own"),
        # A source that was cancelled from within has not ended.
        (asyncio.CancelledError(), RuntimeError, "cancelled from within"),
    ],
)
async def test_an_error_comes_after_the_items_before_it_as_often_as_it_is_asked_for(
    engine_loop: Loop, raised: BaseException, error: type[Exception], message: str
) -> None:
    stream = Stream(Source(20, then=raised), engine_loop)
    items: list[int] = []
    for _ in range(2):
        with pytest.raises(error, match=message):
            await read_into(items, stream)
    assert items == list(range(20))


# Cancelled:


@pytest.mark.parametrize("from_thread", [False, True])
async def test_a_cancel_closes_the_source_on_its_loop(engine_loop: Loop, from_thread: bool) -> None:
    source = Source()
    stream = Stream(source, engine_loop)
    assert await stream.read() == [0]
    if from_thread:
        await asyncio.to_thread(stream.cancel)
    else:
        stream.cancel()
    await eventually(lambda: source.closed_on == [engine_loop])
    assert await stream.read() is None


async def test_cancelling_twice_lets_the_source_finish_its_cleaning(engine_loop: Loop) -> None:
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
    await eventually(lambda: steps == ["begun"])
    stream.cancel()
    engine_loop.call_soon_threadsafe(cancelled_again.set)
    assert await read_all(stream) == []
    assert steps == ["begun", "done"]


async def test_a_cancel_after_the_engines_loop_has_gone_is_harmless() -> None:
    engine_loop = asyncio.new_event_loop()
    stream = Stream(ending(1), engine_loop)
    engine_loop.close()
    stream.cancel()
    assert await stream.read(patience=0) == []


# Ended from outside:


async def test_what_has_arrived_is_read_and_then_the_first_error(engine_loop: Loop) -> None:
    source = Source(100)
    stream = Stream(source, engine_loop)
    await taken(source)
    stream.end(ShuttingDown())
    stream.end(EngineDead())
    await eventually(lambda: source.closed_on)
    assert await stream.read() == list(range(100))
    for _ in range(2):
        with pytest.raises(ShuttingDown):
            await stream.read()


async def test_a_reader_who_waits_is_woken(engine_loop: Loop) -> None:
    source = Source(0)
    stream = Stream(source, engine_loop)
    reading = asyncio.create_task(stream.read(None, 50))
    await taken(source)
    await asyncio.to_thread(stream.end, ShuttingDown())
    async with asyncio.timeout(HUNG_S):
        with pytest.raises(ShuttingDown):
            await reading


async def test_a_source_that_has_not_begun_is_ended_too(engine_loop: Loop) -> None:
    stream = Stream(Source(0), engine_loop)
    stream.end(ShuttingDown())
    with pytest.raises(ShuttingDown):
        await stream.read()


async def test_a_stream_that_was_cancelled_has_no_error(engine_loop: Loop) -> None:
    stream = Stream(Source(0), engine_loop)
    stream.cancel()
    stream.end(ShuttingDown())
    assert await stream.read() is None


async def test_an_answer_that_is_complete_stays_complete(engine_loop: Loop) -> None:
    stream = Stream(ending(1), engine_loop)
    assert await read_all(stream) == [0]
    stream.cancel()
    stream.end(ShuttingDown())
    assert await stream.read() is None


def test_a_source_runs_on_to_its_end_when_the_readers_loop_has_gone(engine_loop: Loop) -> None:
    reader_gone, source_done = threading.Event(), threading.Event()
    reported: list[Any] = []
    engine_loop.call_soon_threadsafe(
        engine_loop.set_exception_handler, lambda _, context: reported.append(context)
    )

    async def source() -> AsyncGenerator[int, None]:
        yield 1
        await asyncio.to_thread(reader_gone.wait, HUNG_S)
        yield 2
        source_done.set()

    async def read() -> None:
        assert await Stream(source, engine_loop).read() == [1]

    asyncio.run(read())
    reader_gone.set()
    assert source_done.wait(HUNG_S)
    assert reported == []
