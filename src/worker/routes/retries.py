"""Restarts answers if the engine dies before their first piece."""

import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

from worker.engine import Engine
from worker.errors import EngineDead
from worker.record import EngineUse, engine_use

T = TypeVar("T")


async def retry_before_first_piece(
    engine: Engine, request_id: str, answer: Callable[[], AsyncGenerator[T, None]]
) -> AsyncGenerator[T, None]:
    """Yield an answer's pieces; if the engine dies before the first one, restart the answer.

    Raises:
        EngineSuspended: The engine is suspended for too long.
        EngineDead: The engine died after the first piece, or does not restart.
        RequestKilledEngine: This request has probably killed the engine.
    """
    while True:
        has_started = False
        await engine.wait_until_resumed()
        try:
            async with contextlib.aclosing(answer()) as pieces:
                async for piece in pieces:
                    has_started = True
                    yield piece
        except EngineDead:
            if has_started:
                raise
            # The dead engine's requests don't end by themselves.
            engine_use.get(EngineUse()).end_requests()
            await engine.wait_for_recovery(request_id)
        else:
            return
