"""Answers that wait for the engine, and begin again when it dies before their first piece."""

import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

from worker.engine import Engine
from worker.errors import EngineDead

T = TypeVar("T")


async def unless_begun(
    engine: Engine, request_id: str, answer: Callable[[], AsyncGenerator[T, None]]
) -> AsyncGenerator[T, None]:
    """Yield an answer; if the engine dies before its first piece, begin again on the next one.

    Raises:
        EngineAside: the engine is set aside for too long.
        EngineDead: it died later, or it does not start again.
        KilledEngine: this request has probably killed it.
    """
    while True:
        begun = False
        await engine.admit()
        try:
            async with contextlib.aclosing(answer()) as pieces:
                async for piece in pieces:
                    begun = True
                    yield piece
        except EngineDead:
            if begun:
                raise
            await engine.back(request_id)
        else:
            return
