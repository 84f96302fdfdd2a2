"""A cancelled job frees its slot in the real engine, by the engine's own count."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from support.engine.requests import ended_by_length, until_idle

from worker.app import Worker

if TYPE_CHECKING:
    from worker.engine.inprocess import InProcessEngine

Ask = Callable[..., Awaitable[list[Any]]]

MESSAGES = [{"role": "user", "content": "Hi"}]
LONG: dict[str, Any] = {"max_tokens": 900, "ignore_eos": True}
# Its answer ends by itself, before its length.
SHORT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hello!"}],
    "sampling_params": {"temperature": 0, "max_tokens": 100},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["raw", "beam", "list", "openai"])
async def test_a_cancelled_job_frees_its_slot(
    worker: Worker, engine: "InProcessEngine", ask: Ask, path: str, stream: bool
) -> None:
    body = {"messages": MESSAGES, **LONG, "stream": stream}
    payload = {
        "raw": {"messages": MESSAGES, "sampling_params": LONG, "stream": stream},
        "beam": {"prompt": "Hi", "sampling_params": {**LONG, "use_beam_search": True, "n": 4}},
        "list": {"prompts": ["Hi"] * 20, "sampling_params": LONG, "stream": stream},
        "openai": {"openai_route": "/v1/chat/completions", "openai_input": body},
    }[path]
    before = ended_by_length(engine)

    async def consume() -> None:
        async for _ in worker.handle({"id": "job-1", "input": payload}):
            pass

    task = asyncio.create_task(consume())
    async with asyncio.timeout(60):
        while not engine.unfinished_requests:
            await asyncio.sleep(0.001)
    task.cancel()
    await until_idle(engine)
    # vLLM counts a request before it hands over the end of a later one.
    await ask(**SHORT)
    after = ended_by_length(engine)
    await ask(**SHORT)
    assert ended_by_length(engine) == after, "a step of a search is a request"
    assert after == before or path == "beam"
