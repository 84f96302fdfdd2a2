"""The worker with the platform's loop around a scripted engine, which notes what it answers.

    python answering.py <volume> <notes>

A note is a line of three words: when a text was answered (by the machine's monotonic clock), by
which process, and the text that was asked.
"""

import sys
import time
from collections.abc import AsyncGenerator, Mapping
from os import getpid
from pathlib import Path
from typing import Any

from support.engine.scripted import ScriptedEngine, settings, tokens

import handler
from worker import asgi
from worker.limits.shapes import NONE, Shape
from worker.record import Usage

SLOTS = 8
# Seconds that a line takes.
LINE_S = 0.08


class Noting(ScriptedEngine):
    """Notes what it answered where a process that is killed has it written already."""

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
        shape: Shape = NONE,
    ) -> AsyncGenerator[asgi.Head | bytes, None]:
        async for part in super().call(path, body, request_id, usage, shape):
            yield part
        name = body["messages"][-1]["content"] if body else "-"
        self._notes.write(f"{time.monotonic():.6f} {getpid()} {name}\n".encode())


if __name__ == "__main__":
    volume, notes = sys.argv[1:]
    with Noting(Path(notes)) as engine:
        # One job, so that a worker that is about to go does not take the one for the next.
        environ = {"BATCH_CONCURRENCY": str(SLOTS), "MAX_CONCURRENCY": "1"}
        handler.serve(engine.engines, settings(FILES_PATH=volume, **environ))
        handler.leave(0)
