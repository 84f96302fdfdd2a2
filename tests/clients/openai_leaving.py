"""Callers that leave in the middle of a stream, or of an answer, with OpenAI's client.

`python -m clients.openai_leaving WAY ADDRESS KEY`: see openai_ways. Prints the ids of the answers
that had begun, as JSON.
"""

import asyncio
import json
import sys
from typing import Any

import openai
from clients.openai_ways import connected, connected_async

# As many tokens as there is room for.
LONG: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": "Hi"}],
    "temperature": 0,
    "max_tokens": 1900,
    "extra_body": {"ignore_eos": True},
}


def stream() -> str:
    with connected(*sys.argv[1:]) as client:
        events = client.chat.completions.create(**LONG, stream=True)
        id: str = next(iter(events)).id
        events.close()
    return id


async def stream_async() -> str:
    async with connected_async(*sys.argv[1:]) as client:
        events = await client.chat.completions.create(**LONG, stream=True)
        id: str = (await anext(aiter(events))).id
        await events.close()
    return id


async def cancelled_async() -> str:
    """Cancel a task in the middle of a stream."""
    ids: asyncio.Queue[str] = asyncio.Queue()

    async def read(client: openai.AsyncOpenAI) -> None:
        async for event in await client.chat.completions.create(**LONG, stream=True):
            ids.put_nowait(event.id)

    async with connected_async(*sys.argv[1:]) as client:
        reading = asyncio.create_task(read(client))
        id = await ids.get()
        reading.cancel()
        await asyncio.wait({reading})
    return id


def main() -> None:
    ids = [stream(), asyncio.run(stream_async()), asyncio.run(cancelled_async())]
    json.dump({"version": openai.__version__, "ids": ids}, sys.stdout)


if __name__ == "__main__":
    main()
