"""The stream between the engine's event loop and the reader's."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextvars import Context
from typing import Any, TypeVarTuple, Unpack

import pytest
from support.engine.scripted import ScriptedEngine, until
from support.processes.background import HUNG_S

from worker.bridge import Stream

Source = Callable[[], AsyncGenerator[int, None]]
Args = TypeVarTuple("Args")


@pytest.fixture
def engine_loop() -> Iterator[asyncio.AbstractEventLoop]:
    with ScriptedEngine() as engine:
        yield engine.loop


def counting(count: int, pause: float | None = None, error: Exception | None = None) -> Source:
    """Yield numbers, ``pause`` seconds apart; with None nothing else runs in between."""

    async def source() -> AsyncGenerator[int, None]:
        for number in range(count):
            if pause is not None:
                await asyncio.sleep(pause)
            yield number
        if error is not None:
            raise error

    return source


class Hanging:
    """A source that records the loops it runs on, and that it was closed."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.closed_on: list[asyncio.AbstractEventLoop] = []

    async def __call__(self) -> AsyncGenerator[int, None]:
        try:
            yield 1
            self.begun.set()
            await asyncio.Event().wait()
        finally:
            self.closed_on.append(asyncio.get_running_loop())


async def read_into(items: list[int], stream: Stream[int]) -> None:
    while (batch := await stream.read()) is not None:
        items += batch


async def read_all(stream: Stream[int]) -> list[int]:
    items: list[int] = []
    await read_into(items, stream)
    return items


@pytest.mark.parametrize("pause", [None, 0, 0.0005])
async def test_items_keep_their_order_and_none_is_lost(
    engine_loop: asyncio.AbstractEventLoop, pause: float | None
) -> None:
    assert await read_all(Stream(counting(300, pause), engine_loop)) == list(range(300))


async def test_many_streams_at_once_do_not_mix(engine_loop: asyncio.AbstractEventLoop) -> None:
    streams = [Stream(counting(count, 0), engine_loop) for count in range(50)]
    read = await asyncio.gather(*map(read_all, streams))
    assert read == [list(range(count)) for count in range(50)]


async def test_one_read_returns_all_that_has_piled_up(
    engine_loop: asyncio.AbstractEventLoop,
) -> None:
    hanging = Hanging()

    async def source() -> AsyncGenerator[int, None]:
        for number in range(100):
            yield number
        async for _ in hanging():
            pass

    stream = Stream(source, engine_loop)
    assert await asyncio.to_thread(hanging.begun.wait, HUNG_S)
    assert await stream.read() == list(range(100))
    stream.cancel()


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts how often other threads wake it."""

    wake_ups = 0

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.Handle:
        self.wake_ups += 1
        return super().call_soon_threadsafe(callback, *args, context=context)


def test_the_reader_is_woken_once_for_many_items(engine_loop: asyncio.AbstractEventLoop) -> None:
    hanging = Hanging()
    loop = CountingLoop()

    async def source() -> AsyncGenerator[int, None]:
        for number in range(1000):
            yield number
        async for _ in hanging():
            pass

    async def read() -> list[int] | None:
        stream = Stream(source, engine_loop)
        # Blocks the reader's loop, so that items pile up.
        assert hanging.begun.wait(HUNG_S)
        return await stream.read()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(read()) == list(range(1000))
        assert loop.wake_ups == 1


async def test_a_reader_who_looked_is_woken_again(engine_loop: asyncio.AbstractEventLoop) -> None:
    stream = Stream(counting(3, 0.01), engine_loop)
    async with asyncio.timeout(60):
        batches = [await stream.read() for _ in range(3)]
        assert [item for batch in batches for item in batch or []] == [0, 1, 2]


async def test_patience_ends_with_an_empty_list(engine_loop: asyncio.AbstractEventLoop) -> None:
    hanging = Hanging()
    stream = Stream(hanging, engine_loop)
    assert await stream.read() == [1]
    assert await stream.read(patience=0.01) == []
    assert await stream.read(patience=0) == []
    stream.cancel()


async def test_items_are_returned_without_waiting_whatever_the_patience(
    engine_loop: asyncio.AbstractEventLoop,
) -> None:
    hanging = Hanging()
    stream = Stream(hanging, engine_loop)
    assert await asyncio.to_thread(hanging.begun.wait, HUNG_S)
    assert await stream.read(patience=0) == [1]
    stream.cancel()


async def test_the_end_is_returned_as_often_as_it_is_asked_for(
    engine_loop: asyncio.AbstractEventLoop,
) -> None:
    stream = Stream(counting(1), engine_loop)
    assert await read_all(stream) == [0]
    assert [await stream.read(), await stream.read(5)] == [None, None]


async def test_a_source_without_items_ends(engine_loop: asyncio.AbstractEventLoop) -> None:
    assert await read_all(Stream(counting(0), engine_loop)) == []


async def test_an_error_comes_after_the_items_before_it(
    engine_loop: asyncio.AbstractEventLoop,
) -> None:
    error = LookupError("the source's own")
    stream = Stream(counting(20, error=error), engine_loop)
    items: list[int] = []
    with pytest.raises(LookupError) as caught:
        await read_into(items, stream)
    assert items == list(range(20))
    assert caught.value is error


async def test_an_error_is_not_mistaken_for_the_end_by_asking_again(
    engine_loop: asyncio.AbstractEventLoop,
) -> None:
    stream = Stream(counting(0, error=LookupError()), engine_loop)
    for _ in range(2):
        with pytest.raises(LookupError):
            await stream.read()


async def test_a_source_cancelled_from_within_is_not_mistaken_for_one_that_ended(
    engine_loop: asyncio.AbstractEventLoop,
) -> None:
    async def source() -> AsyncGenerator[int, None]:
        yield 1
        raise asyncio.CancelledError

    items: list[int] = []
    with pytest.raises(RuntimeError, match="cancelled from within"):
        await read_into(items, Stream(source, engine_loop))
    assert items == [1]


@pytest.mark.parametrize("from_thread", [False, True])
async def test_a_cancel_closes_the_source_on_the_engines_loop(
    engine_loop: asyncio.AbstractEventLoop, from_thread: bool
) -> None:
    hanging = Hanging()
    stream = Stream(hanging, engine_loop)
    assert await stream.read() == [1]
    if from_thread:
        await asyncio.to_thread(stream.cancel)
    else:
        stream.cancel()
    assert await until(lambda: bool(hanging.closed_on))
    assert hanging.closed_on == [engine_loop]
    assert await stream.read() is None


async def test_a_stream_cancelled_at_once_ends(engine_loop: asyncio.AbstractEventLoop) -> None:
    stream = Stream(Hanging(), engine_loop)
    stream.cancel()
    async with asyncio.timeout(60):
        assert await read_all(stream) in ([], [1])


async def test_cancelling_twice_lets_the_source_finish_its_cleaning(
    engine_loop: asyncio.AbstractEventLoop,
) -> None:
    steps: list[str] = []
    cancelled_again = threading.Event()

    async def source() -> AsyncGenerator[int, None]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            steps.append("begun")
            await asyncio.to_thread(cancelled_again.wait, 60)
            steps.append("done")

    stream = Stream(source, engine_loop)
    await stream.read()
    stream.cancel()
    assert await until(lambda: steps == ["begun"])
    stream.cancel()
    engine_loop.call_soon_threadsafe(cancelled_again.set)
    assert await read_all(stream) == []
    assert steps == ["begun", "done"]


async def test_a_cancel_after_the_end_is_harmless(engine_loop: asyncio.AbstractEventLoop) -> None:
    stream = Stream(counting(2), engine_loop)
    assert await read_all(stream) == [0, 1]
    stream.cancel()
    assert await stream.read() is None


async def test_a_cancel_after_the_engines_loop_has_gone_is_harmless() -> None:
    engine_loop = asyncio.new_event_loop()
    stream = Stream(counting(1), engine_loop)
    engine_loop.close()
    stream.cancel()
    assert await stream.read(patience=0) == []


def test_a_source_runs_on_to_its_end_when_the_readers_loop_has_gone(
    engine_loop: asyncio.AbstractEventLoop,
) -> None:
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
