"""The engines as the rest of the worker sees them. vLLM is imported in this package only.

This module itself does not import vLLM: that takes seconds, and the settings are read first.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from prometheus_client import CollectorRegistry

from worker.asgi import Head
from worker.job import RawJob
from worker.record import Usage


@dataclass(frozen=True, slots=True)
class Delta:
    """New output of one choice.

    In a stream it holds one token, or none if only the end is reported; otherwise the whole
    choice. ``logprobs`` and ``token_ids`` have one entry for each of its tokens,
    ``prompt_logprobs`` one for each token of the prompt (the first is None). They are None unless
    the job asked for them.
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
    """A loaded model.

    Args:
        names: what it is served as; answers show the first.
        max_model_len: prompt and answer together, in tokens.
        device: vLLM's device type: "cuda", "cpu".
        tasks: vLLM's supported tasks: "generate", "embed", "score" and so on.
        temperature: the model's own default, from its generation_config.
        max_new_tokens: likewise.
        by_priority: whether requests are computed by their priority, not in their order.
    """

    names: tuple[str, ...]
    max_model_len: int
    device: str
    tasks: frozenset[str]
    temperature: float | None = None
    max_new_tokens: int | None = None
    by_priority: bool = False


class Engine(Protocol):
    """One loaded model: generation on the raw path, and vLLM's own server, called in process.

    Its coroutines and generators run on ``loop``. What fails because the engine is dead raises
    ``EngineDead``.
    """

    @property
    def model(self) -> Model: ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def dead(self) -> bool:
        """True while the engine can't answer: permanently, or until it is started again."""

    async def back(self, request_id: str) -> None:
        """Wait until a dead engine answers again, and until it is this request's turn.

        Raises:
            EngineDead: it does not start again.
            KilledEngine: this request has probably killed it.
        """

    @property
    def slots(self) -> int:
        """How many requests the engine runs at once; further ones wait in its queue."""

    @property
    def metrics(self) -> CollectorRegistry:
        """vLLM's metrics of this engine alone."""

    @property
    def schema(self) -> Mapping[str, Any]:
        """The OpenAPI document of vLLM's server."""

    def keys(self, path: str) -> frozenset[str] | None:
        """Return the keys that vLLM's server knows in the body of a request to a path.

        Returns None if it has no such path: which it has depends on the model's tasks.
        """

    def call(
        self,
        path: str,
        body: Mapping[str, Any] | None,
        request_id: str,
        usage: Usage | None = None,
    ) -> AsyncGenerator[Head | bytes, None]:
        """Yield the answer of vLLM's server: one ``Head``, then the body in parts.

        Closing the generator aborts the request.

        Args:
            path: without a query string.
            body: None sends a GET instead of a POST.
            request_id: passed on as the request's id.
            usage: filled in at the end, if vLLM's server counts the tokens of this route.

        Raises:
            WorkerError: the request is refused, or the engine is dead. A refusal can also be an
                answer with a status of 400 or more, or an error event in a stream.
        """

    def generate(self, job: RawJob, request_id: str) -> AsyncGenerator[Delta, None]:
        """Yield the answer to a raw job; closing the generator aborts the request.

        Raises:
            WorkerError: the request is refused, or the engine is dead.
        """

    async def check(self, job: RawJob) -> None:
        """Check everything of a job but its prompt.

        Raises:
            WorkerError: its sampling parameters are refused, or its model or adapter is unknown.
        """

    async def adapters_on_volume(self) -> list[str]:
        """Return the names of the adapters on the network volume, sorted."""

    async def adopt(self, name: str) -> None:
        """Load the adapter of a name, as it is on the volume now, unless it is loaded already.

        Raises:
            WorkerError: there is no such adapter, or it is broken.
        """

    async def unload(self, name: str) -> None:
        """Unload an adapter.

        Raises:
            WorkerError: no adapter of that name is loaded, or it can't be unloaded.
        """


@dataclass(frozen=True, slots=True)
class Engines:
    """The engines of a worker, on one event loop: the model's, and perhaps an embedder's.

    ``died`` resolves when one of them is dead and is not started again: the worker has to exit.
    """

    main: Engine
    embedder: Engine | None = None
    died: "Future[None]" = field(default_factory=Future)

    def __iter__(self) -> Iterator[Engine]:
        """Yield the model's engine first."""
        yield self.main
        if self.embedder is not None:
            yield self.embedder

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.main.loop
