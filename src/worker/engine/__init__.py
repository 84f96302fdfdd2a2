"""The engines as the rest of the worker sees them. vLLM is imported in this package only.

This module itself does not import vLLM: that takes seconds, and the settings are read first.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from prometheus_client import CollectorRegistry

from worker.asgi import Head
from worker.bridge import Stream
from worker.errors import EngineDead, NoEngine
from worker.job import RawJob
from worker.limits.shapes import NONE, Shape
from worker.record import Usage

# Seconds that a request waits for an engine that is set aside, and what runs gets until it is.
PATIENCE_S = 30.0
DRAIN_S = 60.0


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
        reasons: whether its reasoning is told from its answers, so that it can have a budget.
        source: as the operator named it: a repository of the hub, or a directory.
        place: the directory that it was loaded from; None: vLLM has found it by its name.
        commit: of its repository; None: it comes from none.
        gpus: among how many its weights are divided.
        quantization: vLLM's name for how its weights are packed; None: they are not.
        tokenizer: the directory of its tokenizer; None: vLLM has found it by its name.
        chat_template: the text that conversations are rendered by; None: the tokenizer's own.
        trust_remote_code: whether code in its directory may run.
        max_lora_rank: of its adapters; None: it is served without any.
        hosts: the only ones that files of callers are fetched from; none: all of the internet's.
    """

    names: tuple[str, ...]
    max_model_len: int
    device: str
    tasks: frozenset[str]
    temperature: float | None = None
    max_new_tokens: int | None = None
    by_priority: bool = False
    reasons: bool = False
    source: str = ""
    place: Path | None = None
    commit: str | None = None
    gpus: int = 1
    quantization: str | None = None
    tokenizer: Path | None = None
    chat_template: str | None = None
    trust_remote_code: bool = False
    max_lora_rank: int | None = None
    hosts: tuple[str, ...] = ()


class Base(Protocol):
    """A base model and its adapters on the network volume; its coroutines run on ``loop``."""

    model: Model
    loop: asyncio.AbstractEventLoop

    @property
    def dead(self) -> bool:
        """True while the model can't answer: permanently, or until its engine is started again.

        One that is set aside is not dead.
        """

    @property
    def is_aside(self) -> bool:
        """True while the model's engine is set aside."""

    @property
    def slots(self) -> int:
        """How many requests run at once; further ones wait in the engine's queue."""

    async def cards(self, request_id: str) -> list[dict[str, Any]]:
        """Return OpenAI's objects of the model, one for each name, and of its loaded adapters."""

    async def adapters_on_volume(self) -> Mapping[str, str | None]:
        """Return the adapters on the network volume, sorted by their names.

        The values are the reasons why they can't be loaded, as far as that is known without
        loading them; None for all others.
        """

    async def check_adapter(self, directory: Path) -> None:
        """Check an adapter by the rules that adapters are loaded by.

        Raises:
            InvalidInput: it is broken, made for another model, or none can be served.
        """

    async def unload(self, name: str) -> None:
        """Unload an adapter.

        Raises:
            WorkerError: no adapter of that name is loaded, or it can't be unloaded.
        """


class Engine(Base, Protocol):
    """One loaded model: generation on the raw path, and vLLM's own server, called in process.

    Its generators, too, run on ``loop``. What fails because the engine is dead raises
    ``EngineDead``.
    """

    def aside(
        self, patience_s: float, drain_s: float
    ) -> contextlib.AbstractAsyncContextManager[None]:
        """See ``Engines.aside``."""

    async def admit(self) -> None:
        """Wait while the engine is set aside; every request does so before it begins.

        Raises:
            EngineAside: that takes too long.
        """

    async def back(self, request_id: str) -> None:
        """Wait until a dead engine answers again, and until it is this request's turn.

        Raises:
            EngineAside: it is set aside, and that takes too long.
            EngineDead: it does not start again.
            KilledEngine: this request has probably killed it.
        """

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
        shape: Shape = NONE,
    ) -> AsyncGenerator[Head | bytes, None]:
        """Yield the answer of vLLM's server: one ``Head``, then the body in parts.

        Closing the generator aborts the request.

        Args:
            path: without a query string.
            body: None sends a GET instead of a POST.
            request_id: passed on as the request's id.
            usage: filled in at the end, if vLLM's server counts the tokens of this route.
            shape: of the body; its texts and media are bounded.

        Raises:
            WorkerError: the request is refused, or the engine is dead. A refusal can also be an
                answer with a status of 400 or more, or an error event in a stream.
        """

    def generate(
        self, job: RawJob, request_id: str, *, in_list: bool = False
    ) -> AsyncGenerator[Delta, None]:
        """Yield the answer to a raw job; closing the generator aborts the request.

        Items of a list wait for each other when they are tokenized, so that no other request waits
        for them.

        Raises:
            WorkerError: the request is refused, or the engine is dead.
        """

    async def check(self, job: RawJob) -> None:
        """Check everything of a job but its prompt.

        Raises:
            WorkerError: its sampling parameters are refused, or its model or adapter is unknown.
        """

    async def adopt(self, name: str) -> None:
        """Load the adapter of a name, as it is on the volume now, unless it is loaded already.

        Raises:
            WorkerError: there is no such adapter, or it is broken.
        """


class Engines:
    """The engines of a worker, on one event loop.

    Args:
        engines: the model's, and perhaps an embedder's; none for a worker that only trains.
        base: the model of a worker that only trains.
        died: resolves when an engine is dead and is not started again: the worker has to exit.
    """

    def __init__(
        self, *engines: Engine, base: Base | None = None, died: Future[None] | None = None
    ) -> None:
        self._engines = engines
        self.base: Base = base or engines[0]
        self.died = died or Future[None]()

    def __iter__(self) -> Iterator[Engine]:
        """Return an iterator over the engines, the model's first."""
        return iter(self._engines)

    @property
    def main(self) -> Engine:
        """The model's engine.

        Raises:
            NoEngine: this worker only trains.
        """
        if not self.serve:
            raise NoEngine
        return self._engines[0]

    @property
    def serve(self) -> bool:
        """Whether there are engines; a worker that only trains has none."""
        return bool(self._engines)

    @property
    def bases(self) -> Sequence[Base]:
        """The models that callers can name, also on a worker that only trains."""
        return self._engines or (self.base,)

    @contextlib.asynccontextmanager
    async def aside(
        self, patience_s: float = PATIENCE_S, drain_s: float = DRAIN_S
    ) -> AsyncIterator[None]:
        """Set all engines aside for a block, which has their memory to itself; use on any loop.

        No process of theirs is left inside it. Answers that have not begun by then begin after it.
        A second caller waits until the first one's block has ended. On leaving, the engines are
        started again; that is not interrupted if the caller is cancelled.

        Args:
            patience_s: how long a request waits; then it fails with ``EngineAside``.
            drain_s: how long the requests that run may go on before the block begins.

        Raises:
            EngineDead: one is dead, and is not started again.
        """

        async def held() -> AsyncGenerator[None, None]:
            async with contextlib.AsyncExitStack() as stack:
                # The model's last, so that it is the first to be back.
                for engine in reversed([*self]):
                    await stack.enter_async_context(engine.aside(patience_s, drain_s))
                yield
                # Until the stream is cancelled.
                await asyncio.Event().wait()

        stream = Stream(held, self.base.loop)
        try:
            await stream.read()
            yield
        finally:
            stream.cancel()
            with contextlib.suppress(EngineDead):
                while await stream.read() is not None:
                    pass
