"""A worker without an engine: the real SDK around a handler that does what its input says.

Started as in production: `python -u scripted.py` with the platform's RUNPOD_* variables.
LOOP=sdk leaves the jobs to the SDK's own loop, which shows what the platform has to understand.
"""

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from typing import Any

import runpod

from job_loop import JobLoop, Limits, Wire, sdk
from worker.errors import WorkerError
from worker.record import JobRecord

HANG = "hang"  # an output that never comes
PROGRESS = "progress"  # a key whose value is sent as progress, not yielded


def sse(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


def openai_answer(route: str, body: dict[str, Any] | None) -> list[Any]:
    """Return a worker's yields for the OpenAI path: SSE text, one dict, or an error."""
    if not body:
        return [{"object": "list", "data": [{"id": route, "object": "model"}]}]
    message = body["messages"][-1]["content"]
    if message == "fail":
        error = {"message": "no such model", "type": "NotFoundError", "param": "model", "code": 404}
        return [{"error": json.dumps({"error": error})}]
    base = {"id": "chatcmpl-1", "created": 0, "model": body["model"]}
    if message == HANG:
        return [sse(base), HANG]
    if not body.get("stream"):
        choice = {"index": 0, "message": {"role": "assistant", "content": message}}
        return [{**base, "object": "chat.completion", "choices": [choice]}]
    words = [
        sse({**base, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]})
        for delta in ({"role": "assistant"}, *({"content": word} for word in message.split()))
    ]
    # Two events in one yield: chunks need not be events.
    return [words[0] + words[1], *words[2:], "data: [DONE]\n\n"]


async def handler(job: dict[str, Any]) -> AsyncGenerator[Any, None]:
    given = job["input"]
    if "openai_route" in given:
        outputs = openai_answer(given["openai_route"], given["openai_input"])
    else:
        outputs = given["yields"]
    for output in outputs:
        if output == HANG:
            await asyncio.sleep(3600)
        if isinstance(output, dict) and PROGRESS in output:
            runpod.serverless.progress_update(job, output[PROGRESS])
        else:
            yield output


class Answers:
    """The handler for the worker's loop."""

    def handle(self, job: dict[str, Any], record: JobRecord) -> AsyncGenerator[Any, None]:
        record.streamed = True
        return handler(job)

    ready = True

    def leave(self) -> None:
        """Let them run."""

    def end_all(self, error: WorkerError) -> None:
        """Leave them to be cancelled."""


if __name__ == "__main__":
    max_concurrency = int(os.environ["MAX_CONCURRENCY"])
    if os.environ["LOOP"] == "worker":
        assert sdk.fits()
        wire, limits = Wire(sdk.urls(), sdk.session), Limits(max_concurrency, grace_s=0)
        sdk.install(JobLoop(Answers(), wire, limits, Future(), sdk.in_progress()))
    runpod.serverless.start(
        {
            "handler": handler,
            "return_aggregate_stream": True,
            "concurrency_modifier": lambda _: max_concurrency,
        }
    )
