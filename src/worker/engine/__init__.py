"""Interfaces of the engines for the rest of the worker; only this package imports vLLM.

``start`` leads from the settings to running engines: ``options`` makes ``arguments`` of the
settings, of which vLLM makes its configuration. ``run`` has the running engines, which implement
``Engine``. ``machine``, ``model_config`` and ``cache_plan`` say, without an engine, what vLLM finds
on a machine, in a model's configuration and in its layers. ``seam`` adapts all of them to vLLM.

This module doesn't import vLLM: that takes seconds, and the settings must be read before.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from prometheus_client import CollectorRegistry

from worker.asgi import ResponseHead, take_no_part
from worker.bridge import Stream
from worker.errors import EngineDead, NoEngine
from worker.job import RawJob
from worker.limits.inputs import EMPTY_SHAPE, BodyShape
from worker.record import Usage

# Seconds that a request waits for a suspended engine, and that running requests get to finish.
SUSPEND_TIMEOUT_S = 30.0
DRAIN_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Delta:
    """New output of one choice.

    In a stream, a delta has one token, several if many are pending, or none if it only reports the
    choice's end. Without a stream, it has the whole choice. ``logprobs`` and ``token_ids`` have an
    entry per token of the delta. ``prompt_logprobs`` has one per token of the prompt (None for the
    first token), in the first choice's first delta only. These three are set only on request.
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
    """A loaded model."""

    names: tuple[str, ...]  # that the model is served under; responses contain the first one
    max_model_len: int  # tokens of prompt and output together
    device: str  # vLLM's type of it, such as "cuda" or "cpu"
    tasks: frozenset[str]  # vLLM's, such as "generate", "embed" and "score"
    temperature: float | None = None  # the default, from the model's generation_config
    max_new_tokens: int | None = None  # from the model's generation_config or settings
    has_priorities: bool = False  # requests are scheduled by priority instead of order of arrival
    has_reasoning: bool = False  # reasoning is separated from the output; thinking budgets need it
    has_tool_server: bool = False  # vLLM can call a server that runs tools (TOOL_SERVER)
    source: str = ""  # the repository or directory that the operator configured
    directory: Path | None = None  # that the model was loaded from; None if vLLM located it by name
    commit: str | None = None  # None if the model is not from a repository
    gpu: str = "CPU"  # the GPU's name; "CPU" without one
    gpu_count: int = 1  # GPUs that share the model's weights
    quantization: str | None = None  # vLLM's name for it; None if the weights are not quantized
    tokenizer: Path | None = None  # its directory; None if vLLM located it by name
    chat_template: str | None = None  # the configured one's text; None for the tokenizer's own
    trust_remote_code: bool = False  # code in the model's directory may run
    max_lora_rank: int | None = None  # None if the model is served without adapters
    # The only hosts that callers' files may be fetched from; empty for all.
    media_hosts: tuple[str, ...] = ()


class BaseModelHandle(Protocol):
    """A base model and its adapters on the network volume; its coroutines run on ``loop``.

    They raise a ``WorkerError`` for an adapter that is unknown, broken or made for another model.
    """

    model: Model
    loop: asyncio.AbstractEventLoop

    @property
    def is_dead(self) -> bool:
        """Whether the engine is dead, permanently or until it restarts; False while suspended."""

    @property
    def is_suspended(self) -> bool:
        """Whether the model's engine is suspended."""

    @property
    def slots(self) -> int:
        """Maximum number of concurrent requests; more requests wait in the engine's queue."""

    async def model_cards(self, request_id: str) -> list[dict[str, Any]]:
        """Return OpenAI's model objects: one per name of the model, and one per loaded adapter."""

    async def adapter_problems_on_volume(self) -> Mapping[str, str | None]:
        """Return the volume's adapters by name, sorted, each with its problem as far as known."""

    async def check_adapter(self, directory: Path) -> None:
        """Check an adapter by the same rules as when it is loaded."""

    async def unload_adapter(self, name: str) -> None: ...


class Engine(BaseModelHandle, Protocol):
    """A loaded model: generation for raw jobs, and vLLM's own server, called in this process.

    Its generators also run on ``loop``. Methods raise a ``WorkerError`` if they refuse a request,
    and ``EngineDead`` if they fail because the engine is dead.
    """

    def suspend(
        self, wait_timeout_s: float, drain_timeout_s: float
    ) -> contextlib.AbstractAsyncContextManager[None]:
        """See ``Engines.suspend``."""

    async def wait_until_resumed(self) -> None:
        """Wait while the engine is suspended; every request calls this before it begins.

        Raises:
            EngineSuspended: The engine stays suspended for too long.
        """

    async def wait_for_recovery(self, request_id: str) -> None:
        """Wait until a dead engine responds again, and until this request may be retried.

        Raises:
            EngineSuspended: The engine stays suspended for too long.
            EngineDead: The engine does not restart.
            RequestKilledEngine: This request has probably killed the engine.
        """

    @property
    def metrics(self) -> CollectorRegistry:
        """The vLLM metrics of this engine only."""

    @property
    def openapi_schema(self) -> Mapping[str, Any]:
        """The OpenAPI document of vLLM's server."""

    def body_keys(self, path: str) -> frozenset[str] | None:
        """Return the keys of a body for vLLM's server; None if the model has no such path."""

    def call(
        self,
        path: str,
        body: Mapping[str, Any] | None,
        request_id: str,
        usage: Usage | None = None,
        shape: BodyShape = EMPTY_SHAPE,
        take_part: Callable[[bytes, bool], bool] = take_no_part,
    ) -> AsyncGenerator[ResponseHead | bytes, None]:
        """Call vLLM's server; yield one response head, then the body in parts.

        Closing the generator aborts the request. ``path`` has no query string; a ``body`` of None
        sends a GET request. If vLLM's server counts tokens on this route, ``usage`` is filled in at
        the end. ``shape`` says which texts and media are limited. ``take_part`` is called with each
        part of the body, and with whether it is the next one to be yielded; if it returns True, it
        has taken the part (``asgi.call_app``). A refusal is a ``WorkerError``, a response with a
        status of 400 or more, or an error event in a stream.
        """

    def generate(
        self, job: RawJob, request_id: str, *, in_list: bool = False
    ) -> AsyncGenerator[Delta, None]:
        """Generate the output of a raw job; closing the generator aborts the request.

        Set ``in_list`` for the items of a list: they are tokenized one at a time, so that they
        don't delay other requests.
        """

    async def check_job(self, job: RawJob) -> None:
        """Validate everything in a job except its prompt."""

    async def load_adapter(self, name: str) -> None:
        """Load the current version of an adapter from the volume, unless it is already loaded."""


class Engines:
    """The engines of a worker, on one event loop.

    ``engines`` are the main model's engine and an optional embedder's; none if the worker only
    trains, which has a ``base_model``. ``died`` resolves when an engine is dead and can't restart:
    the worker must exit.
    """

    def __init__(
        self,
        *engines: Engine,
        base_model: BaseModelHandle | None = None,
        died: Future[None] | None = None,
    ) -> None:
        self._engines = engines
        self.base_model: BaseModelHandle = base_model or engines[0]
        self.died = died or Future[None]()

    def __iter__(self) -> Iterator[Engine]:
        return iter(self._engines)

    @property
    def main_engine(self) -> Engine:
        """The main model's engine; raises ``NoEngine`` if this worker only trains."""
        if not self.has_engine:
            raise NoEngine
        return self._engines[0]

    @property
    def has_engine(self) -> bool:
        return bool(self._engines)

    @property
    def base_models(self) -> Sequence[BaseModelHandle]:
        """The models of all engines; for a worker that only trains, its base model."""
        return self._engines or (self.base_model,)

    @contextlib.asynccontextmanager
    async def suspend(
        self, wait_timeout_s: float = SUSPEND_TIMEOUT_S, drain_timeout_s: float = DRAIN_TIMEOUT_S
    ) -> AsyncIterator[None]:
        """Stop all engines during a block, which can use their memory; may be called on any loop.

        The engines' processes have exited when the block begins. A request that begins later waits
        for the end of the block; it fails with ``EngineSuspended`` after ``wait_timeout_s``.
        Running requests get ``drain_timeout_s`` to finish. Blocks of concurrent callers run one at
        a time. The engines are started again when the block exits, even if the caller is cancelled.

        Raises:
            EngineDead: An engine is dead and does not restart.
        """

        async def suspend_engines() -> AsyncGenerator[None, None]:
            async with contextlib.AsyncExitStack() as stack:
                # The main model's engine is suspended last, so that it is the first to restart.
                for engine in reversed([*self]):
                    await stack.enter_async_context(engine.suspend(wait_timeout_s, drain_timeout_s))
                yield
                # Keep the engines suspended until the stream is cancelled.
                await asyncio.Event().wait()

        stream = Stream(suspend_engines, self.base_model.loop)
        try:
            await stream.read()
            yield
        finally:
            stream.cancel()
            with contextlib.suppress(EngineDead):
                while await stream.read() is not None:
                    pass
