"""A worker with the SDK's loop around a scripted engine that records its responses.

    python batch_worker.py <volume> <notes>

A note is a line of three words: the time of a response (``time.monotonic``), the process id, and
the prompt.
"""

import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from os import getpid
from pathlib import Path
from typing import Any

from support.engine.scripted import ScriptedEngine, settings, tokens

import handler
from worker import asgi
from worker.limits.inputs import EMPTY_SHAPE, BodyShape
from worker.record import Usage

SLOTS = 8
# Seconds per line.
LINE_S = 0.08


class RecordingEngine(ScriptedEngine):
    """Writes its notes unbuffered, so that a kill of the process doesn't lose them."""

    slots = SLOTS

    def __init__(self, notes: Path) -> None:
        super().__init__(*tokens("a", "b", pause=LINE_S))
        self._notes = notes.open("ab", 0)

    async def call(
        self,
        path: str,
        body: Mapping[str, Any] | None,
        request_id: str,
        usage: Usage | None = None,
        shape: BodyShape = EMPTY_SHAPE,
        take_part: Callable[[bytes, bool], bool] = asgi.take_no_part,
    ) -> AsyncGenerator[asgi.ResponseHead | bytes, None]:
        async for part in super().call(path, body, request_id, usage, shape, take_part):
            yield part
        name = body["messages"][-1]["content"] if body else "-"
        self._notes.write(f"{time.monotonic():.6f} {getpid()} {name}\n".encode())


if __name__ == "__main__":
    volume, notes = sys.argv[1:]
    with RecordingEngine(Path(notes)) as engine:
        # With one slot, a worker that is about to exit can't take the job for the next worker.
        environ = {"BATCH_CONCURRENCY": str(SLOTS), "MAX_CONCURRENCY": "1"}
        handler.run_sdk(engine.engines, settings(FILES_PATH=volume, **environ))
        handler.exit_process(0)
