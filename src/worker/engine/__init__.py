"""The engine as the rest of the worker sees it. vLLM is imported in this package and nowhere else.

Nothing here imports vLLM on its own: that takes seconds, and the settings come first.
"""

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from worker.asgi import App
from worker.job import RawJob


@dataclass(frozen=True, slots=True)
class Delta:
    """What one choice of an answer has grown by.

    Streaming, it holds one token (none, if only the end is told); otherwise a whole choice.
    ``logprobs`` and ``token_ids`` are in step with its tokens, ``prompt_logprobs`` with the
    prompt's, of which the first has none; each only where asked for.
    """

    index: int
    text: str
    tokens: int
    prompt_tokens: int
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: list[dict[str, Any]] | None = None
    token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None


class Engine(Protocol):
    """One model, loaded: raw generation, and vLLM's own server as an ASGI app.

    ``app`` and ``generate`` belong to ``loop``; ``died`` resolves when the engine can't go on.
    """

    @property
    def app(self) -> App: ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def died(self) -> "Future[None]": ...

    @property
    def dead(self) -> bool:
        """Whether the engine can't go on; known here before ``died`` tells it."""

    async def check(self, job: RawJob) -> None:
        """Refuse what is wrong with a job whatever its prompt is.

        Raises:
            WorkerError: its sampling parameters are refused, or it names what is not served.
        """

    @property
    def slots(self) -> int:
        """How many requests the engine runs at once; further ones wait in its queue."""

    def generate(self, job: RawJob, request_id: str) -> AsyncGenerator[Delta, None]:
        """Answer a raw job; closing the generator aborts the request.

        Raises:
            WorkerError: the request is refused, or the engine is dead.
        """
