"""``LLM``: TACO-LLM's and vLLM's class for scripts, in front of a deployed endpoint."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Self

from anyio.from_thread import start_blocking_portal

from llm_worker_client import account
from llm_worker_client.endpoint import AsyncEndpoint
from llm_worker_client.llm import arguments
from llm_worker_client.llm.batches import Batch, created
from llm_worker_client.llm.lines import CHATS, COMPLETIONS
from llm_worker_client.llm.lists import JobTemplate, Lists
from llm_worker_client.llm.outputs import (
    CompletionOutput,
    EndpointError,
    Logprob,
    PromptError,
    RequestOutput,
)
from llm_worker_client.llm.prompts import Item, conversations_of, encoded, items_of, prompts_of
from llm_worker_client.llm.sampling import SamplingParams
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

# Jobs at once: enough for several workers to have some.
JOBS_AT_ONCE = 8
# Seconds that a job may run: the platform's own default is ten minutes.
LONGEST_JOB_S = 3600.0
# Milliseconds that one may wait for a worker, too: the platform's own default.
TTL_MS = 24 * 3600 * 1000


class LLM:
    """A deployed endpoint for many prompts at once, as a script uses an engine.

    Args:
        endpoint_id: of the endpoint; None: RUNPOD_ENDPOINT_ID's.
        model: the served name of the model or of an adapter; None: the endpoint's model.
        api_key: of the account; None: RUNPOD_API_KEY's, or that of the platform's own file.
        base_url: of the platform's API; None: RunPod's.
        jobs_at_once: how many jobs run at a time.
        execution_timeout_s: how long each of them may run.
        engine_args: of TACO-LLM's and vLLM's class. Those that only say how an engine uses its
            machine have no effect.

    Raises:
        ValueError: there is no endpoint, or an argument asks for another engine.
        TypeError: there is no such argument.
        NoKey: there is no key.
    """

    def __init__(
        self,
        endpoint_id: str | None = None,
        *,
        model: str | None = None,
        api_key: str | None = None,
        base_url: str | None = None,
        jobs_at_once: int = JOBS_AT_ONCE,
        execution_timeout_s: float = LONGEST_JOB_S,
        **engine_args: Any,
    ) -> None:
        arguments.check(engine_args)
        found = endpoint_id or account.endpoint_id()
        if found is None:
            raise ValueError(f"LLM: the endpoint's id, or {account.ENDPOINT} in the environment")
        self._transport = RunpodTransport(found, api_key, base_url)
        # Not as attributes: a repr could print the key with them.
        self._open: Callable[[], AsyncEndpoint] = lambda: AsyncEndpoint(found, api_key, base_url)
        self._shared = {} if model is None else {"model": model}
        self._policy = {"executionTimeout": round(execution_timeout_s * 1000), "ttl": TTL_MS}
        self._jobs_at_once = max(1, jobs_at_once)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. The endpoint stays as it is."""
        self._transport.close()

    def generate(  # noqa: PLR0913, PLR0917 - the documented signature
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
            prompts: one or several; each a text, a list of token ids, or a dict with ``prompt`` or
                ``prompt_token_ids``.
            sampling_params: one for all or one for each: ``SamplingParams``, a dict, or vLLM's.
            prompt_token_ids: the prompts as ids, the way older code passes them.
            use_tqdm: whether to show a progress bar.
            lora_request: one for all, or one (or None) for each: an adapter's served name, or
                vLLM's ``LoRARequest``, of which only the name counts.
            prompt_adapter_request: has no effect but a warning: vLLM has dropped it.
            guided_options_request: constrains the texts (``guided_json`` and so on).

        Returns:
            outputs in the order of the prompts.

        Raises:
            ValueError, TypeError: before anything is sent.
            PromptError: a prompt is refused; all jobs are cancelled.
            EndpointError: the endpoint does not answer, or refuses them all.
        """
        if prompt_adapter_request is not None:
            message = "prompt_adapter_request has no effect: vLLM has no prompt adapters any more"
            warnings.warn(message, stacklevel=2)
        prompts = prompts if prompt_token_ids is None else prompt_token_ids
        if prompts is None:
            raise TypeError("generate: prompts, or prompt_token_ids")
        asked = prompts_of(prompts)
        items = items_of(asked, sampling_params, lora_request, guided_options_request)
        return self._answered("prompts", items, {}, use_tqdm)

    def chat(  # noqa: PLR0913 - the documented signature
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
        """Answer a conversation, or a list of them.

        Args:
            messages: as in OpenAI's API, images included.
            sampling_params: as in ``generate``.
            use_tqdm: whether to show a progress bar.
            lora_request: as in ``generate``.
            chat_template: refused: it is the endpoint's (CUSTOM_CHAT_TEMPLATE).
            add_generation_prompt: whether the template begins a turn of the assistant.
            tools: functions that the template shows to the model.
            chat_template_kwargs: variables for the template.
            continue_final_message: whether the answer continues the last message.

        Returns:
            outputs in the order of the conversations.

        Raises:
            The errors of ``generate``.
        """
        if chat_template is not None:
            message = "it is the endpoint's: deploy it with CUSTOM_CHAT_TEMPLATE"
            raise ValueError(f"chat_template: {message}")
        shared = {
            "add_generation_prompt": None if add_generation_prompt else False,
            "tools": tools,
            "chat_template_kwargs": chat_template_kwargs,
            "continue_final_message": continue_final_message or None,
        }
        items = items_of(conversations_of(messages), sampling_params, lora_request)
        return self._answered("messages_list", items, shared, use_tqdm)

    def generate_batch(
        self,
        prompts: Any,
        sampling_params: Any = None,
        lora_request: Any = None,
        guided_options_request: Any = None,
    ) -> Batch:
        """Begin a batch of what ``generate`` would answer; it needs the network volume.

        Raises:
            ValueError, TypeError: before anything is sent.
            EndpointError: the endpoint refuses it.
        """
        asked = prompts_of(prompts)
        items = items_of(asked, sampling_params, lora_request, guided_options_request)
        return created(self._transport, items, COMPLETIONS, self._shared)

    def chat_batch(
        self, messages: Any, sampling_params: Any = None, lora_request: Any = None
    ) -> Batch:
        """Begin a batch of what ``chat`` would answer; see ``generate_batch``."""
        items = items_of(conversations_of(messages), sampling_params, lora_request)
        return created(self._transport, items, CHATS, self._shared)

    def batch(self, id: str) -> Batch:
        """Go on with a batch that was begun by ``generate_batch`` or ``chat_batch``.

        Raises:
            EndpointError: there is none.
        """
        batch = Batch(self._transport, id)
        batch.resume()
        return batch

    def _answered(
        self, holder: str, items: Sequence[Item], shared: dict[str, Any], use_tqdm: bool
    ) -> list[RequestOutput]:
        own = {name: value for name, value in shared.items() if value is not None}
        common = {**self._shared, **own, "return_token_ids": True, "use_tqdm": use_tqdm}
        template = JobTemplate(holder, common, self._policy, self._jobs_at_once)
        encoded(common, "chat")
        lists = Lists(self._open(), items, template, use_tqdm)
        # In a thread of its own, so that it works where a loop runs already, as in notebooks.
        # Ctrl-C cancels the jobs, and waits until they are; a second one does not wait.
        with start_blocking_portal() as portal:
            return portal.call(lists.answer)
