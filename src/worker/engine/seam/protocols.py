"""The parts of vLLM's objects that this package uses, since vLLM's own classes are Any to mypy.

``tests/contract/test_vllm_protocols.py`` checks that the installed vLLM's classes have them.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

# A rendered prompt: one of vLLM's dicts; most hold ``prompt_token_ids``.
EngineInput = Mapping[str, Any]


class Logprob(Protocol):
    """One candidate token at one position."""

    logprob: float
    rank: int | None
    decoded_token: str | None


class CompletionOutput(Protocol):
    """One choice of an answer, whole or what it has grown by."""

    index: int
    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None
    # One mapping for each token: candidates by token id.
    logprobs: Iterable[Mapping[int, Logprob]] | None
    finish_reason: str | None
    stop_reason: int | str | None


class RequestOutput(Protocol):
    """What vLLM's engine yields for a request."""

    prompt_token_ids: list[int] | None
    # The first position has none.
    prompt_logprobs: Sequence[Any] | None
    outputs: list[CompletionOutput]


class LoRARequest(Protocol):
    """An adapter as vLLM's engine is asked for it."""

    lora_name: str
    lora_int_id: int
    lora_path: str


class Tokenizer(Protocol):
    """The model's tokenizer."""

    max_chars_per_token: int
    truncation_side: str

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str: ...


class Renderer(Protocol):
    """Tokenizes prompts."""

    tokenizer: Tokenizer | None

    async def render_cmpl_async(self, prompts: Any) -> Sequence[EngineInput]: ...

    def get_mm_processor(self) -> Any: ...


class Models(Protocol):
    """The models and adapters of vLLM's server (``OpenAIServingModels``)."""

    # The adapters that are loaded, by name.
    lora_requests: dict[str, LoRARequest]
    lora_resolvers: list[Any]
    lora_id_counter: Any
    base_model_paths: list[Any]

    def is_base_model(self, model_name: str) -> bool: ...

    async def resolve_lora(self, lora_name: str) -> Any: ...

    async def load_lora_adapter(self, request: Any) -> Any: ...


class UsageInfo(Protocol):
    """The tokens of an answer, all choices together."""

    prompt_tokens: int
    completion_tokens: int | None


class RequestMetadata(Protocol):
    """What a route of vLLM's server notes of a request, in its state."""

    # None for routes that don't count, and until the answer is complete.
    final_usage_info: UsageInfo | None


class RequestState(Protocol):
    """A request that a core has not answered to its end."""

    external_req_id: str
    # In tokens.
    prompt_len: int
    # Whether it has no output yet.
    is_prefilling: bool
    # Its ``arrival_time`` is Unix time in seconds; there are none if vLLM keeps no statistics.
    stats: Any


class OutputProcessor(Protocol):
    """What has the requests that a core has not answered to their end."""

    # By vLLM's id of a request.
    request_states: dict[str, RequestState]

    def has_unfinished_requests(self) -> bool: ...

    def get_num_unfinished_requests(self) -> int: ...


class ProcessManager(Protocol):
    """The processes of a core, one for each rank."""

    processes: list[BaseProcess]


class Resources(Protocol):
    """What the connection to a core holds."""

    engine_manager: ProcessManager


class Connection(Protocol):
    """The connection to a core."""

    resources: Resources
    # One for each call of the core that it has not answered, other than requests.
    utility_results: dict[int, asyncio.Future[Any]]


class Client(Protocol):
    """vLLM's client of one engine core (``AsyncLLM``)."""

    vllm_config: Any
    model_config: Any
    output_processor: OutputProcessor
    engine_core: Connection
    # The task that passes the core's outputs on to requests, and its death; None before the first.
    output_handler: asyncio.Task[None] | None
    renderer: Renderer
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

    async def add_lora(self, lora_request: LoRARequest) -> bool: ...

    async def remove_lora(self, lora_id: int) -> bool: ...

    async def get_supported_tasks(self) -> tuple[str, ...]: ...

    async def do_log_stats(self) -> None: ...

    def shutdown(self) -> None: ...
