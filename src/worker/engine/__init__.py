"""The engine as the rest of the worker sees it. vLLM is imported in this package and nowhere else.

Nothing here imports vLLM on its own: that takes seconds, and the settings come first.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from prometheus_client import CollectorRegistry

from worker.asgi import Head
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


@dataclass(frozen=True, slots=True)
class Model:
    """What callers are told of a loaded model.

    ``names`` are those it is served by, the first of which stands in answers; ``max_model_len``
    is in tokens; ``temperature`` and ``max_new_tokens`` are the model's own defaults, if it has
    some.
    """

    names: tuple[str, ...]
    max_model_len: int
    device: str
    temperature: float | None = None
    max_new_tokens: int | None = None


class Engine(Protocol):
    """One model, loaded: raw generation, and vLLM's own server, called in process.

    Its coroutines and generators belong to ``loop``; ``died`` resolves when the engine is gone for
    good.
    """

    @property
    def model(self) -> Model: ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def beside(self) -> "Engine | None":
        """An embedder in the same worker, on the same loop; if it is gone for good, both are."""

    @property
    def metrics(self) -> CollectorRegistry:
        """What vLLM counts of this engine alone."""

    @property
    def schema(self) -> Mapping[str, Any]:
        """The OpenAPI document of vLLM's server."""

    def keys(self, path: str) -> frozenset[str] | None:
        """The keys that vLLM's server knows in a body for a path; None where it has no such path.

        That depends on what the model can do.
        """

    def call(
        self, path: str, body: Mapping[str, Any] | None, request_id: str
    ) -> AsyncGenerator[Head | bytes, None]:
        """Ask vLLM's server; without a body, by GET. Closing the generator aborts the request.

        Raises:
            WorkerError: the request is refused, or the engine is dead; a status of 400 or more
                says the same.
        """

    @property
    def died(self) -> "Future[None]": ...

    @property
    def dead(self) -> bool:
        """Whether the engine can't answer now; known here before ``died`` tells it."""

    async def check(self, job: RawJob) -> None:
        """Refuse what is wrong with a job whatever its prompt is.

        Raises:
            WorkerError: its sampling parameters are refused, or it names what is not served.
        """

    async def adapters_on_volume(self) -> list[str]:
        """The names of the adapters on the network volume that can be asked for, sorted."""

    async def adopt(self, name: str) -> None:
        """See to it that the adapter of a name is served, as the volume has it now.

        Raises:
            WorkerError: there is none of that name, or it is broken.
        """

    async def unload(self, name: str) -> None:
        """Free what a loaded adapter holds.

        Raises:
            WorkerError: none of that name is loaded.
        """

    @property
    def slots(self) -> int:
        """How many requests the engine runs at once; further ones wait in its queue."""

    def generate(self, job: RawJob, request_id: str) -> AsyncGenerator[Delta, None]:
        """Answer a raw job; closing the generator aborts the request.

        Raises:
            WorkerError: the request is refused, or the engine is dead.
        """
