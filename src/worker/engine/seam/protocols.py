"""Protocols for the parts of vLLM's objects that this package uses.

mypy sees vLLM's own classes as Any. ``tests/contract/test_vllm_protocols.py`` checks that the
installed vLLM's classes have these parts.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

# A rendered prompt: one of vLLM's dicts. Most of them have ``prompt_token_ids``.
EngineInput = Mapping[str, Any]


class Logprob(Protocol):
    """One candidate token at one position."""

    logprob: float
    rank: int | None
    decoded_token: str | None


class CompletionOutput(Protocol):
    """One choice of an answer: the whole choice, or only the new part in a stream."""

    index: int
    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None
    # One mapping for each token: candidates by token id.
    logprobs: Iterable[Mapping[int, Logprob]] | None
    finish_reason: str | None
    stop_reason: int | str | None


class RequestOutput(Protocol):
    """One output of vLLM's engine for a request."""

    prompt_token_ids: list[int] | None
    # One entry for each token of the prompt; ``None`` for the first token.
    prompt_logprobs: Sequence[Any] | None
    outputs: list[CompletionOutput]


class LoRARequest(Protocol):
    """An adapter, as a parameter of vLLM's engine."""

    lora_name: str
    lora_int_id: int
    lora_path: str


class Tokenizer(Protocol):
    """The model's tokenizer."""

    max_chars_per_token: int
    truncation_side: str

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str: ...


class Renderer(Protocol):
    """Converts prompts to inputs of the engine."""

    tokenizer: Tokenizer | None
    # None if the model takes only texts, or LIMIT_MM_PER_PROMPT disables all media.
    mm_processor: Any

    async def render_cmpl_async(self, prompts: Any) -> Sequence[EngineInput]: ...


class Models(Protocol):
    """The models and adapters of vLLM's server (``OpenAIServingModels``)."""

    # The loaded adapters, by name.
    lora_requests: dict[str, LoRARequest]
    lora_resolvers: list[Any]
    lora_id_counter: Any
    base_model_paths: list[Any]

    def is_base_model(self, model_name: str) -> bool: ...

    async def resolve_lora(self, lora_name: str) -> Any: ...

    async def load_lora_adapter(self, request: Any) -> Any: ...


class UsageInfo(Protocol):
    """The token counts of an answer, for all choices together."""

    prompt_tokens: int
    completion_tokens: int | None


class RequestMetadata(Protocol):
    """Metadata that a route of vLLM's server stores in the state of a request."""

    # None for routes that don't count tokens, and until the answer is complete.
    final_usage_info: UsageInfo | None


class RequestState(Protocol):
    """An unfinished request of a core."""

    external_req_id: str
    # Tokens of the prompt.
    prompt_len: int
    # Whether the request has no output yet.
    is_prefilling: bool
    # Tokens of the prompt that the prefix cache had.
    num_cached_tokens: int
    # Name of the adapter; None for the base model.
    lora_name: str | None
    # Number of the choice, if the request has several.
    request_index: int
    # vLLM's ``RequestStateStats``; None if vLLM collects no statistics.
    stats: Any


class OutputProcessor(Protocol):
    """Tracks the unfinished requests of a core."""

    # By vLLM's id of the request.
    request_states: dict[str, RequestState]

    def has_unfinished_requests(self) -> bool: ...

    def get_num_unfinished_requests(self) -> int: ...


class ProcessManager(Protocol):
    """The processes of a core, one for each rank."""

    processes: list[BaseProcess]


class ConnectionResources(Protocol):
    """The resources of the connection to a core, such as the core's processes."""

    engine_manager: ProcessManager


class CoreConnection(Protocol):
    """The connection to a core."""

    resources: ConnectionResources
    # Calls that the core still has to answer, other than requests.
    utility_results: dict[int, asyncio.Future[Any]]


class Client(Protocol):
    """vLLM's client of one engine core (``AsyncLLM``)."""

    vllm_config: Any
    model_config: Any
    output_processor: OutputProcessor
    engine_core: CoreConnection
    # Task that passes the core's outputs and its death to requests. None before the first request.
    output_handler: asyncio.Task[None] | None
    renderer: Renderer
    # Its ``stat_loggers`` receive the statistics of every step; None if vLLM collects none.
    logger_manager: Any
    errored: bool

    def generate(
        self,
        prompt: EngineInput,
        sampling_params: Any,
        request_id: str,
        *,
        lora_request: LoRARequest | None = None,
    ) -> AsyncGenerator[RequestOutput, None]: ...

    def encode(
        self,
        prompt: EngineInput,
        pooling_params: Any,
        request_id: str,
        lora_request: LoRARequest | None = None,
    ) -> AsyncGenerator[Any, None]: ...

    async def abort(self, request_id: str) -> None: ...

    async def add_lora(self, lora_request: LoRARequest) -> bool: ...

    async def remove_lora(self, lora_id: int) -> bool: ...

    async def get_supported_tasks(self) -> tuple[str, ...]: ...

    async def do_log_stats(self) -> None: ...

    def shutdown(self) -> None: ...
