"""``LLM``: the script interface of TACO-LLM and vLLM for a deployed endpoint.

``inputs`` makes items of a call's prompts or conversations, each with its parameters and adapter.
``lists`` packs the items into jobs that are small enough, runs several at once, and retries what
failed for a moment. ``batches`` sends them as one batch instead, which continues on the endpoint's
volume after the script has exited. Both return the ``outputs``, which have vLLM's names.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from anyio.from_thread import start_blocking_portal

from llm_worker_client import account
from llm_worker_client.deploy.settings import LISTING
from llm_worker_client.endpoint import AsyncEndpoint
from llm_worker_client.llm.batches import CHATS, COMPLETIONS, Batch, create_batch
from llm_worker_client.llm.inputs import (
    Item,
    SamplingParams,
    create_items,
    encode_json,
    parse_conversations,
    parse_prompts,
)
from llm_worker_client.llm.lists import ItemRunner, JobTemplate
from llm_worker_client.llm.outputs import (
    CompletionOutput,
    EndpointError,
    Logprob,
    PromptError,
    RequestOutput,
)
from llm_worker_client.transport import RunpodTransport

__all__ = [
    "LLM",
    "Batch",
    "CompletionOutput",
    "EndpointError",
    "Logprob",
    "PromptError",
    "RequestOutput",
    "SamplingParams",
]

# Default number of concurrent jobs, enough to use several workers.
CONCURRENT_JOBS = 8
# Default time limit of a job in seconds. The platform's default is 10 minutes.
JOB_TIMEOUT_S = 3600.0
# Maximum milliseconds from a job's submission to its end; the platform's default.
JOB_TTL_MS = 24 * 3600 * 1000
# Defaults of engine arguments of TACO-LLM and vLLM; an argument with its default is ignored.
DEFAULTS: Mapping[str, Any] = {
    "tokenizer": None,
    "tokenizer_mode": "auto",
    "skip_tokenizer_init": False,
    "trust_remote_code": False,
    "tensor_parallel_size": 1,
    "dtype": "auto",
    "quantization": None,
    "revision": None,
    "tokenizer_revision": None,
    "seed": 0,
    "gpu_memory_utilization": 0.9,
    "swap_space": 4,
    "cpu_offload_gb": 0,
    "enforce_eager": None,
    "max_context_len_to_capture": None,
    "max_seq_len_to_capture": 8192,
    "disable_custom_all_reduce": False,
    "disable_async_output_proc": False,
}
# Engine arguments that affect only the use of the machine, not the output.
_MACHINE_ARGUMENTS = frozenset(
    """
    cpu_offload_gb disable_async_output_proc disable_custom_all_reduce disable_log_stats
    enable_prefix_caching enforce_eager gpu_memory_utilization max_context_len_to_capture
    max_num_batched_tokens max_num_seqs max_seq_len_to_capture pipeline_parallel_size swap_space
    tensor_parallel_size
    """.split()
)
_SETTING_NAMES = {"tokenizer": "TOKENIZER_NAME"}


class LLM:
    """A deployed endpoint with the interface of vLLM's class ``LLM``, for scripts.

    Args:
        endpoint_id: Id of the endpoint; RUNPOD_ENDPOINT_ID by default.
        model: Served name of the model or of an adapter; the endpoint's model by default.
        api_key: API key of the account; by default from RUNPOD_API_KEY or ~/.runpod/config.toml.
        base_url: Base URL of the platform's API; RUNPOD_ENDPOINT_BASE_URL or RunPod's by default.
        jobs_at_once: Maximum number of concurrent jobs.
        execution_timeout_s: Time limit of each job in seconds.
        engine_args: Other arguments of ``LLM`` in TACO-LLM and vLLM. Arguments that only affect
            how an engine uses its machine cause a warning and are ignored.

    Raises:
        ValueError: If no endpoint is configured, or an argument requires a different engine.
        TypeError: If an argument doesn't exist.
        NoApiKey: If no API key is configured.
    """

    def __init__(
        self,
        endpoint_id: str | None = None,
        *,
        model: str | None = None,
        api_key: str | None = None,
        base_url: str | None = None,
        jobs_at_once: int = CONCURRENT_JOBS,
        execution_timeout_s: float = JOB_TIMEOUT_S,
        **engine_args: Any,
    ) -> None:
        check_engine_arguments(engine_args)
        id = endpoint_id or account.endpoint_id()
        if id is None:
            variable = account.ENDPOINT_VARIABLE
            raise ValueError(f"LLM: the endpoint's id, or {variable} in the environment")
        options = (id, api_key, base_url)
        self._transport = RunpodTransport(*options)
        # The options contain the key; an attribute with the options would print it in its repr.
        self._open_endpoint: Callable[[], AsyncEndpoint] = lambda: AsyncEndpoint(*options)
        self._shared = {} if model is None else {"model": model}
        self._policy = {"executionTimeout": round(execution_timeout_s * 1000), "ttl": JOB_TTL_MS}
        self._jobs_at_once = max(1, jobs_at_once)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the endpoint keeps running."""
        self._transport.close()

    def generate(  # noqa: PLR0913, PLR0917 - the parameters of vLLM's method
        self,
        prompts: Any = None,
        sampling_params: Any = None,
        prompt_token_ids: list[int] | list[list[int]] | None = None,
        use_tqdm: bool = True,
        lora_request: Any = None,
        prompt_adapter_request: Any = None,
        guided_options_request: Any = None,
    ) -> list[RequestOutput]:
        """Complete prompts.

        Args:
            prompts: One or several prompts: strings, lists of token ids, or dicts with ``prompt``
                or ``prompt_token_ids``.
            sampling_params: Parameters for all prompts, or a list with one item for each prompt:
                ``SamplingParams``, dicts or vLLM's objects.
            prompt_token_ids: The prompts as token ids, as an alternative to ``prompts``.
            use_tqdm: Whether to show a progress bar.
            lora_request: Adapter for all prompts, or a list with an adapter or None for each:
                served names, or vLLM's ``LoRARequest`` objects, whose names are used.
            prompt_adapter_request: Ignored with a warning; vLLM no longer has prompt adapters.
            guided_options_request: Constraints for the output (``guided_json`` and so on).

        Returns:
            The outputs in the order of the prompts.

        Raises:
            ValueError, TypeError: If an argument is wrong; nothing has been sent.
            PromptError: If a prompt failed; all jobs are cancelled.
            EndpointError: If a job failed or the platform can't be reached; all jobs are cancelled.
        """
        if prompt_adapter_request is not None:
            message = "prompt_adapter_request has no effect: vLLM has no prompt adapters any more"
            warnings.warn(message, stacklevel=2)
        prompts = prompts if prompt_token_ids is None else prompt_token_ids
        if prompts is None:
            raise TypeError("generate: prompts, or prompt_token_ids")
        contents = parse_prompts(prompts)
        items = create_items(contents, sampling_params, lora_request, guided_options_request)
        return self._run_items("prompts", items, {}, use_tqdm)

    def chat(  # noqa: PLR0913 - the parameters of vLLM's method
        self,
        messages: Any,
        sampling_params: Any = None,
        use_tqdm: bool = True,
        lora_request: Any = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        *,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        continue_final_message: bool = False,
    ) -> list[RequestOutput]:
        """Answer one or several conversations.

        Args:
            messages: One or several lists of messages as in OpenAI's API, images included.
            sampling_params: Parameters as in ``generate``.
            use_tqdm: Whether to show a progress bar.
            lora_request: Adapters as in ``generate``.
            chat_template: Must be None; the endpoint's setting CUSTOM_CHAT_TEMPLATE applies.
            add_generation_prompt: Whether the template starts a turn of the assistant.
            tools: Functions that the template lists for the model.
            chat_template_kwargs: Variables for the template.
            continue_final_message: Whether the answer continues the last message.

        Returns:
            The outputs in the order of the conversations.

        Raises:
            ValueError, TypeError: If an argument is wrong; nothing has been sent.
            PromptError: If a conversation failed; all jobs are cancelled.
            EndpointError: If a job failed or the platform can't be reached; all jobs are cancelled.
        """
        if chat_template is not None:
            message = "the endpoint has its own: deploy it with CUSTOM_CHAT_TEMPLATE"
            raise ValueError(f"chat_template: {message}")
        shared = {
            "add_generation_prompt": None if add_generation_prompt else False,
            "tools": tools,
            "chat_template_kwargs": chat_template_kwargs,
            "continue_final_message": continue_final_message or None,
        }
        items = create_items(parse_conversations(messages), sampling_params, lora_request)
        return self._run_items("messages_list", items, shared, use_tqdm)

    def generate_batch(
        self,
        prompts: Any,
        sampling_params: Any = None,
        lora_request: Any = None,
        guided_options_request: Any = None,
    ) -> Batch:
        """Start a batch with arguments as in ``generate``; the endpoint needs a network volume.

        Raises:
            ValueError, TypeError: If an argument is wrong; nothing has been sent.
            EndpointError: If the endpoint refuses the batch or the platform can't be reached.
        """
        contents = parse_prompts(prompts)
        items = create_items(contents, sampling_params, lora_request, guided_options_request)
        return create_batch(self._transport, items, COMPLETIONS, self._shared)

    def chat_batch(
        self, messages: Any, sampling_params: Any = None, lora_request: Any = None
    ) -> Batch:
        """Start a batch of conversations with arguments as in ``chat``; see ``generate_batch``."""
        items = create_items(parse_conversations(messages), sampling_params, lora_request)
        return create_batch(self._transport, items, CHATS, self._shared)

    def resume_batch(self, id: str) -> Batch:
        """Return the batch with this id; if no worker runs it, this sends the job that does.

        Raises:
            EndpointError: If the batch doesn't exist or the platform can't be reached.
        """
        batch = Batch(self._transport, id)
        batch.retrieve()
        return batch

    def _run_items(
        self, items_key: str, items: Sequence[Item], shared: dict[str, Any], use_tqdm: bool
    ) -> list[RequestOutput]:
        call_fields = {name: value for name, value in shared.items() if value is not None}
        common = {**self._shared, **call_fields, "return_token_ids": True, "use_tqdm": use_tqdm}
        template = JobTemplate(items_key, common, self._policy, self._jobs_at_once)
        encode_json(common, "chat")
        runner = ItemRunner(self._open_endpoint(), items, template, use_tqdm)
        # Run in another thread because the caller's thread may run an event loop, as in notebooks.
        # Ctrl-C cancels the jobs and waits until they are cancelled; a second Ctrl-C doesn't wait.
        with start_blocking_portal() as portal:
            return portal.call(runner.run)


def check_engine_arguments(arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that would change the endpoint's engine; warn of those without an effect."""
    for name, value in arguments.items():
        setting = _SETTING_NAMES.get(name, name.upper())
        is_known = name in DEFAULTS or name in _MACHINE_ARGUMENTS
        if not is_known and setting not in LISTING.known_variables:
            name_error = LISTING.name_error(setting)
            raise TypeError(f"LLM: {name_error or f'there is no argument {name!r}'}")
        if name in DEFAULTS and value in (DEFAULTS[name], None):
            continue
        if name in _MACHINE_ARGUMENTS:
            message = f"{name} has no effect: the endpoint's engine is already running"
            warnings.warn(message, stacklevel=3)
            continue
        if name == "seed":
            raise ValueError(f"seed: give each prompt SamplingParams(seed={value!r})")
        raise ValueError(
            f"{name}: the endpoint's engine is already running. Deploy it with {setting}={value}, "
            "as docs/deploy.md shows, and leave this out."
        )
