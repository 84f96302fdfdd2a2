"""An endpoint whose worker answers chats by a script: texts that no model produces."""

import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from anyio.from_thread import start_blocking_portal
from support.scripted_endpoint import scripted_endpoint

from emulator import Emulator, Job, Options

# Returns the chunks of an answer, each a list of the texts of its tokens.
ChunksFunction = Callable[[], AsyncIterator[Sequence[str]]]


def _event(**choice: Any) -> str:
    body = {
        "id": "chatcmpl-scripted",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "scripted",
        "choices": [{"index": 0, "delta": {}, "finish_reason": None, **choice}],
    }
    return f"data: {json.dumps(body)}\n\n"


@contextmanager
def scripted_chat(
    chunks: ChunksFunction, model: str = "scripted", **options: Any
) -> Iterator[Emulator]:
    """Run an emulator in a thread, with a worker that answers chats with these chunks.

    Args:
        chunks: Function that returns the chunks of an answer.
        model: Name of the only model.
        options: Options of the emulator.
    """

    async def act(emulator: Emulator, job: Job) -> None:
        queue = emulator.queue
        if job.input.get("route") == "/v1/models":
            models = [{"id": model, "object": "model", "created": 0, "owned_by": "nobody"}]
            queue.complete(job, [{"object": "list", "data": models}])
            return
        outputs = []
        async for texts in chunks():
            outputs.append("".join(_event(delta={"content": text}) for text in texts))
            queue.add_chunk(job, outputs[-1])
        outputs.append(_event(finish_reason="stop") + "data: [DONE]\n\n")
        queue.add_chunk(job, outputs[-1])
        queue.complete(job, outputs)

    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(scripted_endpoint(act, Options(**options))) as emulator,
    ):
        # The page waits for a worker that requests jobs.
        portal.call(setattr, emulator.queue.get_worker("w"), "ready", True)
        yield emulator
