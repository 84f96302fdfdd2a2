"""Calls with asyncio: they share a connection, and leave nothing behind when their loop ends."""

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from support.deployed import ACCOUNT, HANGS, Scripted

from emulator import Emulator, Status
from llm_worker_client import Completion, configure

ASKED: dict[str, Any] = {"model": "m", "prompt": "p"}
OUTPUT = {"text": "a", "num_prompt_tokens": 1, "num_completion_tokens": 1}
WHOLE = {"request_id": "r", "output": OUTPUT}
EVENT = f"data: {json.dumps({'request_id': 'r', 'output': {'text': 'a', 'finished': False}})}\n\n"


def connections(emulator: Emulator) -> set[int]:
    """Return the ports of this process that are connected to the emulator."""
    port = urlsplit(emulator.api_url).port
    found = psutil.Process().net_connections("tcp")
    return {one.laddr.port for one in found if one.raddr and one.raddr.port == port}


async def in_a_loop_of_its_own(calls: Any) -> Any:
    return await asyncio.to_thread(lambda: asyncio.run(calls()))


async def test_calls_share_a_connection_that_ends_with_their_loop(
    endpoint: Scripted, emulator: Emulator
) -> None:
    endpoint.yields = [WHOLE]

    async def calls() -> list[set[int]]:
        found = []
        for _ in range(3):
            await Completion.acreate(**ASKED)
            found.append(connections(emulator))
        return found

    before = connections(emulator)
    first, second, third = await in_a_loop_of_its_own(calls)
    assert first == second == third
    assert len(first - before) == 1
    assert connections(emulator) <= before
    # Another loop has one of its own.
    again, *_ = await in_a_loop_of_its_own(calls)
    assert (len(again - before), bool(again & first)) == (1, False)


async def test_a_stream_that_its_loop_ends_with_is_cancelled(
    endpoint: Scripted, emulator: Emulator
) -> None:
    endpoint.yields = [EVENT, HANGS]

    async def calls() -> None:
        stream: Any = await Completion.acreate(**ASKED, stream=True)
        assert (await anext(aiter(stream))).output.text == "a"

    before = connections(emulator)
    await in_a_loop_of_its_own(calls)
    (job,) = emulator.queue.jobs.values()
    assert job.status is Status.CANCELLED
    assert connections(emulator) <= before


@pytest.mark.parametrize("stream", [False, True])
async def test_who_is_cancelled_has_cancelled_the_job(
    endpoint: Scripted, emulator: Emulator, stream: bool
) -> None:
    endpoint.yields = [HANGS]

    async def read() -> None:
        answer: Any = await Completion.acreate(**ASKED, stream=stream)
        async for _ in answer:
            pass

    async def calls() -> None:
        reading = asyncio.create_task(read())
        while not endpoint.given:
            await asyncio.sleep(0.01)
        # One that reads has its id, one that has just sent it gets it from the answer.
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    await in_a_loop_of_its_own(calls)
    (job,) = emulator.queue.jobs.values()
    assert job.status is Status.CANCELLED


async def test_the_next_call_goes_where_it_is_configured_to(
    endpoint: Scripted, emulator: Emulator
) -> None:
    endpoint.yields = [WHOLE]
    configure("local", ACCOUNT, "http://127.0.0.1:9/v2")

    async def calls() -> str:
        configure("local", ACCOUNT, emulator.api_url)
        answer: Any = await Completion.acreate(**ASKED)
        configure("local", ACCOUNT, emulator.api_url)
        again: Any = await Completion.acreate(**ASKED)
        text: str = answer.output.text + again.output.text
        return text

    assert await in_a_loop_of_its_own(calls) == "aa"
