"""``LLM``: the worker's engine for scripts, without the platform."""

import asyncio
import contextlib
import itertools
import weakref
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar

from tqdm import tqdm

from worker.engine import start
from worker.engine.seam.protocols import EngineInput
from worker.job import RawJob
from worker.offline.inputs import (
    Params,
    check_known,
    convert_distinct,
    one_per_prompt,
    prompt_list,
    sampling_params_of,
    warn_once,
)
from worker.settings.sources import gather
from worker.settings.values import text

T = TypeVar("T")


class LLM:
    """One model for many prompts at once, with a worker's settings, engine and raw path.

    The engine runs until ``close()``, the end of a ``with`` block or of the process.

    Args:
        model: a directory, or a repository on the Hugging Face hub.
        engine_args: any other setting of the worker or option of vLLM, by its lower-case name.

    Raises:
        SettingsError: listing all wrong values.
        StartFailed: with vLLM's message.
        TypeError: neither the worker nor the installed vLLM has such an argument.
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
        values = {
            "model_name": model,
            "tokenizer_name": tokenizer,
            "tokenizer_mode": tokenizer_mode,
            "skip_tokenizer_init": skip_tokenizer_init,
            "trust_remote_code": trust_remote_code,
            "tensor_parallel_size": tensor_parallel_size,
            # Unset, it is the model's own, or one that any CPU can compute with.
            "dtype": None if dtype == "auto" else dtype,
            "quantization": quantization,
            "revision": revision,
            "tokenizer_revision": tokenizer_revision,
            "seed": seed,
            "gpu_memory_utilization": gpu_memory_utilization,
            "cpu_offload_gb": cpu_offload_gb,
            "enforce_eager": enforce_eager,
            "disable_custom_all_reduce": disable_custom_all_reduce,
            # Who calls ``chat`` is the operator.
            "trust_request_chat_template": True,
            **engine_args,
        }
        environ = {name.upper(): text(value) for name, value in values.items()}
        ready = start.ready(gather(environ))
        try:
            check_known(engine_args, ready.options)
        except TypeError:
            ready.read_ahead.close()
            raise
        # vLLM can be imported only now.
        from worker.engine.run.inprocess import InProcessEngine  # noqa: PLC0415 - see above
        from worker.engine.start import launch  # noqa: PLC0415 - likewise

        stack = contextlib.ExitStack()
        # Scripts have no embedder.
        ready = replace(ready, engines=ready.engines[:1])
        engines = stack.enter_context(launch.launched(ready))
        assert isinstance(engines.main, InProcessEngine)  # for the type checker
        self._engine = engines.main
        self._numbers = itertools.count()
        # Also called when the process exits, which would otherwise wait for the engine's threads.
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
            use_tqdm: whether to show a progress bar.
            lora_request: one for all, or one (or None) for each prompt: vLLM's ``LoRARequest``, or
                the name of an adapter in ``lora_modules``.
            prompt_adapter_request: has no effect but a warning: vLLM has dropped it.
            guided_options_request: constrains the texts (``guided_json`` and so on).

        Returns:
            vLLM's ``RequestOutput``s in the order of the prompts.

        Raises:
            ValueError: the lists have different lengths.
            WorkerError: a prompt or a parameter is refused.
        """
        if prompt_adapter_request is not None:
            warn_once("prompt_adapter_request", "vLLM has no prompt adapters any more")
        values = prompts if prompt_token_ids is None else prompt_token_ids
        if values is None:
            raise TypeError("generate: prompts, or prompt_token_ids")
        return self._complete(
            self._renderings(values),
            sampling_params,
            lora_request,
            use_tqdm,
            guided_options_request,
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
            use_tqdm: whether to show a progress bar.
            lora_request: as in ``generate``.
            chat_template: a Jinja template to use instead of the model's own.
            add_generation_prompt: whether the template begins a turn of the assistant.
            tools: functions that the template shows to the model.
            chat_template_kwargs: variables for the template.
            continue_final_message: whether the answer continues the last message.

        Returns:
            vLLM's ``RequestOutput``s in the order of the conversations.

        Raises:
            ValueError: the lists have different lengths.
            WorkerError: a message or a parameter is refused.
        """
        conversations = messages if messages and isinstance(messages[0], list) else [messages]
        shared = {
            "add_generation_prompt": add_generation_prompt,
            "tools": tools,
            "chat_template_kwargs": chat_template_kwargs,
            "continue_final_message": continue_final_message,
        }
        jobs = [RawJob.read({"messages": conversation, **shared}) for conversation in conversations]
        render = self._engine.generation.prompts.render_job
        renderings = [partial(render, job, chat_template) for job in jobs]
        return self._complete(renderings, sampling_params, lora_request, use_tqdm)

    def embed(self, prompts: Any, use_tqdm: bool = True, lora_request: Any = None) -> list[Any]:
        """Embed prompts with an embedding model (``runner="pooling"`` if it also generates).

        Returns:
            vLLM's ``EmbeddingRequestOutput``s in the order of the prompts; the vector of each is
            ``outputs.embedding``, a list of floats.

        Raises:
            WorkerError: a prompt is refused, or the model does not embed.
        """
        renderings = self._renderings(prompts)
        adapters = self._load_adapters(lora_request, len(renderings))
        calls = [
            partial(self._engine.generation.embed, prompt, self._request_id(), adapter)
            for prompt, adapter in zip(self._run(renderings), adapters, strict=True)
        ]
        return self._run(calls, use_tqdm)

    def _renderings(self, prompts: Any) -> list[Callable[[], Awaitable[EngineInput]]]:
        render = self._engine.generation.prompts.render_prompt
        return [partial(render, prompt) for prompt in prompt_list(prompts)]

    def _complete(
        self,
        renderings: Sequence[Callable[[], Awaitable[EngineInput]]],
        sampling_params: Params | Sequence[Params] | None,
        lora_request: Any,
        use_tqdm: bool,
        guided: Any = None,
    ) -> list[Any]:
        generation = self._engine.generation
        params = one_per_prompt(sampling_params, len(renderings), "sampling_params")
        plans = convert_distinct(
            params, lambda value: generation.plan(sampling_params_of(value, guided))
        )
        adapters = self._load_adapters(lora_request, len(renderings))
        # All prompts are rendered before the first request: the engine then begins with full steps.
        prompts = self._run(renderings)
        calls = [
            partial(generation.complete, prompt, planned, self._request_id(), adapter)
            for prompt, planned, adapter in zip(prompts, plans, adapters, strict=True)
        ]
        return self._run(calls, use_tqdm)

    def _load_adapters(self, lora_request: Any, count: int) -> list[Any]:
        """Return vLLM's request of a loaded adapter, or None, for each prompt."""
        adapters = self._engine.generation.adapters

        def load(request: Any) -> Any:
            if not request:
                return None
            loading = adapters.get if isinstance(request, str) else adapters.load
            return self._run([partial(loading, request)])[0]

        return convert_distinct(one_per_prompt(lora_request, count, "lora_request"), load)

    def _request_id(self) -> str:
        return f"offline-{next(self._numbers)}"

    def _run(self, calls: Sequence[Callable[[], Awaitable[T]]], use_tqdm: bool = False) -> list[T]:
        """Run all calls at once on the engine's loop; the first failure cancels the others."""

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
            # After Ctrl-C the engine would go on.
            future.cancel()
