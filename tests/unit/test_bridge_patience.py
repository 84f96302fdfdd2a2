"""A reader that waits for several items at once."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator

import pytest
from support.engine.scripted import ScriptedEngine

from worker.bridge import Stream


@pytest.fixture
def engine_loop() -> Iterator[asyncio.AbstractEventLoop]:
    with ScriptedEngine() as engine:
        yield engine.loop


async def test_a_reader_waits_for_enough_or_until_its_patience_ends(
    engine_loop: asyncio.AbstractEventLoop,
) -> None:
    waits, go_on = threading.Event(), threading.Event()

    async def source() -> AsyncGenerator[int, None]:
        yield 0
        yield 1
        waits.set()
        await asyncio.to_thread(go_on.wait, 60)
        yield 2
        yield 3

    stream = Stream(source, engine_loop)
    assert await asyncio.to_thread(waits.wait, 60)
    assert await stream.read(0.05, enough=3) == [0, 1]
    asyncio.get_running_loop().call_later(0.05, go_on.set)
    assert await stream.read(60, enough=2) == [2, 3]


async def test_the_end_comes_to_a_reader_that_waits_for_more(
    engine_loop: asyncio.AbstractEventLoop,
) -> None:
    async def source() -> AsyncGenerator[int, None]:
        yield 0
        await asyncio.sleep(0.01)
        yield 1

    stream = Stream(source, engine_loop)
    assert await stream.read(5, enough=3) == [0, 1]
    assert await stream.read(5, enough=3) is None
