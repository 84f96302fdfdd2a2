"""A stream that is ended from outside: what has arrived is read, then the error."""

import asyncio
from collections.abc import AsyncGenerator, Iterator

import pytest
from support.engine.scripted import ScriptedEngine, until

from worker.bridge import Stream
from worker.errors import EngineDead, ShuttingDown


@pytest.fixture
def engine_loop() -> Iterator[asyncio.AbstractEventLoop]:
    with ScriptedEngine() as engine:
        yield engine.loop


class Source:
    """Yields some numbers, then hangs."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.yielded = 0
        self.closed = False

    async def __call__(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(self.count):
                yield number
                self.yielded += 1
            await asyncio.Event().wait()
        finally:
            self.closed = True


async def test_what_has_arrived_is_read_and_then_the_error(
    engine_loop: asyncio.AbstractEventLoop,
) -> None:
    source = Source(100)
    stream = Stream(source, engine_loop)
    assert await until(lambda: source.yielded == 100)
    stream.end(ShuttingDown())
    assert await until(lambda: source.closed)
    assert await stream.read() == list(range(100))
    for _ in range(2):
        with pytest.raises(ShuttingDown):
            await stream.read()


@pytest.mark.parametrize("from_thread", [False, True])
async def test_a_reader_who_waits_is_woken(
    engine_loop: asyncio.AbstractEventLoop, from_thread: bool
) -> None:
    stream = Stream(Source(0), engine_loop)
    reading = asyncio.create_task(stream.read(None, 50))
    await asyncio.sleep(0.01)
    if from_thread:
        await asyncio.to_thread(stream.end, ShuttingDown())
    else:
        stream.end(ShuttingDown())
    async with asyncio.timeout(60):
        with pytest.raises(ShuttingDown):
            await reading


async def test_a_source_that_has_not_begun_is_ended_too(
    engine_loop: asyncio.AbstractEventLoop,
) -> None:
    stream = Stream(Source(0), engine_loop)
    stream.end(ShuttingDown())
    with pytest.raises(ShuttingDown):
        await stream.read()


async def test_the_first_error_counts(engine_loop: asyncio.AbstractEventLoop) -> None:
    stream = Stream(Source(0), engine_loop)
    stream.end(ShuttingDown())
    stream.end(EngineDead())
    with pytest.raises(ShuttingDown):
        await stream.read()


async def test_a_stream_that_was_cancelled_has_no_error(
    engine_loop: asyncio.AbstractEventLoop,
) -> None:
    stream = Stream(Source(0), engine_loop)
    stream.cancel()
    stream.end(ShuttingDown())
    assert await stream.read() is None


async def test_an_answer_that_is_complete_stays_complete(
    engine_loop: asyncio.AbstractEventLoop,
) -> None:
    async def source() -> AsyncGenerator[int, None]:
        yield 1

    stream = Stream(source, engine_loop)
    assert await stream.read() == [1]
    assert await stream.read() is None
    stream.end(ShuttingDown())
    assert await stream.read() is None
