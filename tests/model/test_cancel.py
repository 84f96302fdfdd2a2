"""A cancelled job frees its slot in the real engine, by the engine's own count."""

import asyncio
from typing import Any

import pytest

from worker.app import Worker

MESSAGES = [{"role": "user", "content": "Hi"}]
LONG: dict[str, Any] = {"max_tokens": 900, "ignore_eos": True}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["raw", "beam", "list", "openai"])
async def test_a_cancelled_job_frees_its_slot(
    worker: Worker, engine: Any, path: str, stream: bool
) -> None:
    body = {"messages": MESSAGES, **LONG, "stream": stream}
    payload = {
        "raw": {"messages": MESSAGES, "sampling_params": LONG, "stream": stream},
        "beam": {"prompt": "Hi", "sampling_params": {**LONG, "use_beam_search": True, "n": 4}},
        "list": {"prompts": ["Hi"] * 20, "sampling_params": LONG, "stream": stream},
        "openai": {"openai_route": "/v1/chat/completions", "openai_input": body},
    }[path]

    async def consume() -> None:
        async for _ in worker.handle({"id": "job-1", "input": payload}):
            pass

    task = asyncio.create_task(consume())
    async with asyncio.timeout(5):
        while not engine.unfinished_requests:
            await asyncio.sleep(0.001)
    task.cancel()
    # Generous: a few milliseconds here; a request that is not aborted takes seconds more.
    async with asyncio.timeout(0.5):
        while engine.unfinished_requests:
            await asyncio.sleep(0.001)
