"""``LLM``: the worker's engine for a script of one's own, with no platform around it."""

import asyncio
import contextlib
import itertools
import weakref
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Self, TypeVar

from tqdm import tqdm

from worker import start
from worker.job import RawJob
from worker.offline.inputs import (
    Params,
    each,
    listed,
    once,
    refuse_unknown,
    sampling,
    warn_once,
)
from worker.settings.values import text

T = TypeVar("T")


class LLM:
    """One model for many prompts at once, with the settings, the engine and the path of a worker.

    Args:
        model: a directory, or a repository on the Hugging Face hub.
        engine_args: every other setting of the worker and option of vLLM, by its lower-case name.

    The engine runs until ``close()``, the end of a ``with`` block or of the process.

    Raises:
        SettingsError: all wrong values at once.
        StartFailed: with what vLLM said.
        TypeError: an argument that neither the worker nor the installed vLLM has.
    """

    def __init__(  # noqa: PLR0913 - the documented signature
        self,
        model: str,
        *,
        tokenizer: str | None = None,
        tokenizer_mode: str = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        quantization: str | None = None,
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        seed: int = 0,
        gpu_memory_utilization: float = 0.9,
        cpu_offload_gb: float = 0,
        enforce_eager: bool | None = None,
        disable_custom_all_reduce: bool = False,
        **engine_args: Any,
    ) -> None:
        given = {
            "model_name": model,
            "tokenizer_name": tokenizer,
            "tokenizer_mode": tokenizer_mode,
            "skip_tokenizer_init": skip_tokenizer_init,
            "trust_remote_code": trust_remote_code,
            "tensor_parallel_size": tensor_parallel_size,
            # Unset, the type is the model's own, or one that any CPU can compute with.
            "dtype": None if dtype == "auto" else dtype,
            "quantization": quantization,
            "revision": revision,
            "tokenizer_revision": tokenizer_revision,
            "seed": seed,
            "gpu_memory_utilization": gpu_memory_utilization,
            "cpu_offload_gb": cpu_offload_gb,
            "enforce_eager": enforce_eager,
            "disable_custom_all_reduce": disable_custom_all_reduce,
            # Whoever calls ``chat`` is no stranger.
            "trust_request_chat_template": True,
            **engine_args,
        }
        environ = {name.upper(): text(value) for name, value in given.items()}
        read = start.ready(environ)
        refuse_unknown(engine_args, read.options)
        # Only now is vLLM there.
        from worker.engine import launch  # noqa: PLC0415 - see above
        from worker.engine.inprocess import InProcessEngine  # noqa: PLC0415 - likewise

        stack = contextlib.ExitStack()
        engines = stack.enter_context(
            launch.launched(read.settings, read.arguments, compiled=read.compiled)
        )
        assert isinstance(engines.main, InProcessEngine)  # for the type checker
        self._engine = engines.main
        self._numbers = itertools.count()
        # Also at the end of the process, which would wait for the engine's otherwise.
        self.close = weakref.finalize(self, stack.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def generate(  # noqa: PLR0913, PLR0917 - the documented signature
        self,
        prompts: Any = None,
        sampling_params: Params | Sequence[Params] | None = None,
        prompt_token_ids: list[int] | list[list[int]] | None = None,
        use_tqdm: bool = True,
        lora_request: Any = None,
        prompt_adapter_request: Any = None,
        guided_options_request: Any = None,
    ) -> list[Any]:
        """Complete prompts.

        Args:
            prompts: one or several; each a text, a list of token ids, or one of vLLM's dicts.
            sampling_params: one for all, or one for each prompt.
            prompt_token_ids: the prompts as ids, the way older code passes them.
            use_tqdm: whether to show a bar.
            lora_request: one for all, or one (or None) for each prompt: vLLM's ``LoRARequest``, or
                the name of an adapter in ``lora_modules``.
            prompt_adapter_request: gone from vLLM; a warning says so.
            guided_options_request: what the texts are held to (``guided_json`` and so on).

        Returns:
            vLLM's ``RequestOutput``s in the order of the prompts.

        Raises:
            ValueError: lists of different lengths.
            WorkerError: a prompt or a parameter that is refused.
        """
        if prompt_adapter_request is not None:
            warn_once("prompt_adapter_request", "vLLM has no prompt adapters any more")
        given = prompts if prompt_token_ids is None else prompt_token_ids
        if given is None:
            raise TypeError("generate: prompts, or prompt_token_ids")
        complete = self._engine.generation.prompts.complete
        rendering = [partial(complete, prompt) for prompt in listed(given)]
        return self._answers(
            rendering, sampling_params, lora_request, use_tqdm, guided_options_request
        )

    def chat(  # noqa: PLR0913 - the documented signature
        self,
        messages: list[Any],
        sampling_params: Params | Sequence[Params] | None = None,
        use_tqdm: bool = True,
        lora_request: Any = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        *,
        tools: list[Any] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        continue_final_message: bool = False,
    ) -> list[Any]:
        """Answer a conversation, or a list of them.

        Args:
            messages: as in OpenAI's API, images included.
            sampling_params: one for all, or one for each conversation.
            use_tqdm: whether to show a bar.
            lora_request: as in ``generate``.
            chat_template: a Jinja template in place of the model's own.
            add_generation_prompt: whether the template begins a turn of the assistant.
            tools: functions that the template shows to the model.
            chat_template_kwargs: values for the template.
            continue_final_message: whether to go on with the last message.

        Returns:
            vLLM's ``RequestOutput``s in the order of the conversations.

        Raises:
            ValueError: lists of different lengths.
            WorkerError: a message or a parameter that is refused.
        """
        conversations = messages if messages and isinstance(messages[0], list) else [messages]
        shared = {
            "add_generation_prompt": add_generation_prompt,
            "tools": tools,
            "chat_template_kwargs": chat_template_kwargs,
            "continue_final_message": continue_final_message,
        }
        jobs = [RawJob.read({"messages": conversation, **shared}) for conversation in conversations]
        chats = [
            partial(self._engine.generation.prompts.render, job, chat_template) for job in jobs
        ]
        return self._answers(chats, sampling_params, lora_request, use_tqdm)

    def embed(self, prompts: Any, use_tqdm: bool = True, lora_request: Any = None) -> list[Any]:
        """Embed prompts with a model that does (``runner="pooling"``, where it can do both).

        Returns:
            vLLM's ``EmbeddingRequestOutput``s in the order of the prompts; the vector of each is
            ``outputs.embedding``, a list of floats.

        Raises:
            WorkerError: a prompt that is refused, or a model that does not embed.
        """
        rendering = [
            partial(self._engine.generation.prompts.complete, prompt) for prompt in listed(prompts)
        ]
        adapters = self._adapters(lora_request, len(rendering))
        calls = [
            partial(self._engine.generation.embed, prompt, self._request_id(), adapter)
            for prompt, adapter in zip(self._rendered(rendering), adapters, strict=True)
        ]
        return self._run(calls, use_tqdm)

    def _answers(
        self,
        rendering: Sequence[Callable[[], Awaitable[Any]]],
        sampling_params: Params | Sequence[Params] | None,
        lora_request: Any,
        use_tqdm: bool,
        guided: Any = None,
    ) -> list[Any]:
        params = each(sampling_params, len(rendering), "sampling_params")
        plans = once(params, lambda one: self._engine.generation.plan(sampling(one, guided)))
        adapters = self._adapters(lora_request, len(rendering))
        calls = [
            partial(self._engine.generation.complete, prompt, planned, self._request_id(), adapter)
            for prompt, planned, adapter in zip(
                self._rendered(rendering), plans, adapters, strict=True
            )
        ]
        return self._run(calls, use_tqdm)

    def _rendered(self, rendering: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
        """Render all prompts before the first is asked: the engine then begins with full steps."""
        return self._run(
            [partial(self._engine.generation.rendered, render) for render in rendering], False
        )

    def _adapters(self, lora_request: Any, count: int) -> list[Any]:
        """Load the adapters, and return one for each prompt."""

        def load(adapter: Any) -> Any:
            return (
                adapter
                and self._run([partial(self._engine.generation.load, adapter)], use_tqdm=False)[0]
            )

        return once(each(lora_request, count, "lora_request"), load)

    def _request_id(self) -> str:
        return f"offline-{next(self._numbers)}"

    def _run(self, calls: Sequence[Callable[[], Awaitable[T]]], use_tqdm: bool) -> list[T]:
        """Run all calls at once on the engine's loop; the first failure ends the others."""

        async def run() -> list[T]:
            with tqdm(total=len(calls), desc="Processed prompts", disable=not use_tqdm) as bar:

                async def counted(call: Callable[[], Awaitable[T]]) -> T:
                    result = await call()
                    bar.update()
                    return result

                tasks = [asyncio.create_task(counted(call)) for call in calls]
                try:
                    return await asyncio.gather(*tasks)
                finally:
                    for task in tasks:
                        task.cancel()

        if not self.close.alive:
            raise RuntimeError("this LLM is closed")
        future = asyncio.run_coroutine_threadsafe(run(), self._engine.loop)
        try:
            return future.result()
        finally:
            # Left by Ctrl-C, the engine would go on.
            future.cancel()
