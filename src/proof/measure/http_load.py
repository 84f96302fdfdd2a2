"""Callers over HTTP that do as little work as possible: they parse only the last event."""

import asyncio
import itertools
import json
import random
import re
import time
from collections.abc import Sequence
from typing import Any

import aiohttp

from proof.measure.figures import Answer, Load
from proof.measure.processes import Lost

# The ids of an event's tokens, and the marker of the event with the usage, which is the only one
# that is parsed.
IDS, USAGE = re.compile(rb'"token_ids": ?\[([^\]]+)'), b'"usage":{'
LIMIT_S = 120.0


def prompts(count: int, seed: int = 0) -> list[str]:
    """Return prompts of eight words, always the same ones for a seed."""
    rng = random.Random(7 + seed)
    words = "a small worker counts tokens".split()
    return [" ".join(rng.choices(words, k=8)) for _ in range(count)]


def body(model: str, prompt: str, load: Load) -> dict[str, Any]:
    """Return a chat whose answer has exactly the load's number of tokens."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": load.tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": load.stream,
        **(
            {"stream_options": {"include_usage": True}, "return_token_ids": True}
            if load.stream
            else {}
        ),
    }


async def answers(base: str, models: Sequence[str], load: Load, seed: int = 0) -> list[Answer]:
    """Send the requests of a load.

    Args:
        base: Base URL of the OpenAI API, including its version.
        models: Served names of models, which the requests name in turn.
        load: The load.
        seed: Seed of the prompts.

    Raises:
        Lost: If a response is an error, or tokens are missing.
    """
    waiting = zip(prompts(load.requests, seed), itertools.cycle(models), strict=False)
    results: list[Answer] = []
    connector = aiohttp.TCPConnector(limit=load.callers)
    timeout = aiohttp.ClientTimeout(total=LIMIT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as client:

        async def call() -> None:
            url = f"{base}/chat/completions"
            results.extend(
                [await _answer(client, url, model, prompt, load) for prompt, model in waiting]
            )

        await asyncio.gather(*(call() for _ in range(load.callers)))
    return results


async def _answer(
    client: aiohttp.ClientSession, url: str, model: str, prompt: str, load: Load
) -> Answer:
    answer = Answer(time.perf_counter())
    async with client.post(url, json=body(model, prompt, load)) as response:
        if response.status != 200:
            raise Lost(f"{response.status}: {await response.text()}")
        if load.stream:
            await _stream(response, answer)
        else:
            whole = await response.json(content_type=None)
            answer.arrivals.append((time.perf_counter(), 1))
            answer.tokens = whole["usage"]["completion_tokens"]
    answer.ended = time.perf_counter()
    if answer.tokens != load.tokens:
        raise Lost(f"an answer has {answer.tokens} of {load.tokens} tokens")
    return answer


async def _stream(response: aiohttp.ClientResponse, answer: Answer) -> None:
    rest, last = b"", b""
    async for part in response.content.iter_any():
        *events, rest = (rest + part).split(b"\n\n")
        if count := sum(ids.count(b",") + 1 for event in events for ids in IDS.findall(event)):
            answer.arrivals.append((time.perf_counter(), count))
        last = next((event for event in reversed(events) if USAGE in event), last)
    if last:
        answer.tokens = json.loads(last.removeprefix(b"data: "))["usage"]["completion_tokens"]
