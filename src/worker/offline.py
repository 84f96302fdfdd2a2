"""Runs the worker's engine in a script, without the platform.

``LLM`` goes through the same start as a worker, with its arguments as settings. Its methods render
prompts and generate on the engine's event loop, as raw jobs do, and block until all are complete.
"""

import asyncio
import contextlib
import functools
import itertools
import warnings
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeVar

from tqdm import tqdm

from worker.engine.seam.locations import import_from_vllm
from worker.engine.seam.protocols import EngineInput
from worker.engine.start import Start
from worker.job import RawJob
from worker.job.sampling_params import Sampling, merge_params
from worker.limits.parameters import STRUCTURED_OUTPUTS, check_parameter_bounds
from worker.settings import Settings
from worker.settings.names import CANONICAL_NAMES, SPECULATIVE_KEYS, explain_removal
from worker.settings.sources import gather_settings
from worker.settings.values import format_value
from worker.validation import SAMPLING_PARAMS, unknown_key_message

T = TypeVar("T")

# vLLM's SamplingParams, or a dict with the keys of a job's ``sampling_params``.
Params = Any


class LLM:
    """A model that processes many prompts concurrently, with a worker's settings and engine.

    Prompts are processed as a worker processes raw jobs. The engine runs until ``close()``, until
    the end of a ``with`` block, or until the process exits.

    Args:
        model: A directory, or a repository on the Hugging Face hub.
        engine_args: Other settings of the worker or options of vLLM, with lower-case names.

    Raises:
        SettingsError: If settings are invalid. The message lists all of them.
        StartFailed: If the engine fails to start. The message is vLLM's.
        TypeError: If an argument is neither a setting nor an option of the installed vLLM.
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
            # If unset, the dtype is the model's own, or on a CPU one that every CPU supports.
            "dtype": None if dtype == "auto" else dtype,
            "quantization": quantization,
            "revision": revision,
            "tokenizer_revision": tokenizer_revision,
            "seed": seed,
            "gpu_memory_utilization": gpu_memory_utilization,
            "cpu_offload_gb": cpu_offload_gb,
            "enforce_eager": enforce_eager,
            "disable_custom_all_reduce": disable_custom_all_reduce,
            # The caller of ``chat`` is the operator, so its chat templates are trusted.
            "trust_request_chat_template": True,
            **engine_args,
        }
        environ = {name.upper(): format_value(value) for name, value in values.items()}
        start = Start.read(gather_settings(environ))
        start.prepare()
        try:
            _check_argument_names(engine_args, start.option_names)
        except TypeError:
            start.read_ahead.close()
            raise
        # These modules import vLLM, which reads variables that ``Start`` sets.
        from worker.engine.run.inprocess import InProcessEngine  # noqa: PLC0415 - see above
        from worker.engine.start import launch  # noqa: PLC0415 - see above

        stack = contextlib.ExitStack()
        # Drop the embedding model of the worker's settings, as no method of this class uses it.
        del start.engines[1:]
        engines = stack.enter_context(launch.launch_engines(start))
        assert isinstance(engines.main_engine, InProcessEngine)  # for the type checker
        self._engine = engines.main_engine
        self._request_numbers = itertools.count()
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
            prompts: One prompt or several: strings, lists of token ids, or vLLM's dicts.
            sampling_params: One object for all prompts, or one for each prompt.
            prompt_token_ids: The prompts as token ids, instead of ``prompts``, for older code.
            use_tqdm: Whether to display a progress bar.
            lora_request: One adapter for all prompts, or one (or None) for each prompt: vLLM's
                ``LoRARequest``, or the name of an adapter in ``lora_modules``.
            prompt_adapter_request: Only causes a warning, as vLLM has dropped prompt adapters.
            guided_options_request: Constraints on the output (``guided_json`` and so on).

        Returns:
            vLLM's ``RequestOutput``s in the order of the prompts.

        Raises:
            TypeError: If there are no prompts, or an argument has another type.
            ValueError: If the lists have different lengths.
            WorkerError: If a prompt or a parameter is invalid.
        """
        if prompt_adapter_request is not None:
            _warn_no_effect("prompt_adapter_request", "vLLM has no prompt adapters any more")
        values = prompts if prompt_token_ids is None else prompt_token_ids
        if values is None:
            raise TypeError("generate: prompts, or prompt_token_ids")
        return self._complete(
            self._prompt_renderings(values),
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
        """Answer a conversation or a list of conversations.

        Args:
            messages: The messages of a conversation, or a list of conversations. Messages are in
                OpenAI's format and may contain images and other media.
            sampling_params: One object for all conversations, or one for each conversation.
            use_tqdm: Whether to display a progress bar.
            lora_request: The adapter or adapters, as in ``generate``.
            chat_template: A Jinja template to use instead of the model's own.
            add_generation_prompt: Whether the template adds the beginning of the assistant's turn.
            tools: Functions that the template presents to the model.
            chat_template_kwargs: Variables for the template.
            continue_final_message: Whether the output continues the last message.

        Returns:
            vLLM's ``RequestOutput``s in the order of the conversations.

        Raises:
            ValueError: If the lists have different lengths.
            WorkerError: If a message or a parameter is invalid.
        """
        conversations = messages if messages and isinstance(messages[0], list) else [messages]
        shared = {
            "add_generation_prompt": add_generation_prompt,
            "tools": tools,
            "chat_template_kwargs": chat_template_kwargs,
            "continue_final_message": continue_final_message,
        }
        jobs = [
            RawJob.from_input({"messages": conversation, **shared})
            for conversation in conversations
        ]
        render = self._engine.generation.render_job_prompt
        renderings = [partial(render, job, chat_template) for job in jobs]
        return self._complete(renderings, sampling_params, lora_request, use_tqdm)

    def embed(self, prompts: Any, use_tqdm: bool = True, lora_request: Any = None) -> list[Any]:
        """Embed prompts; a model that also generates text needs ``LLM(..., runner="pooling")``.

        Returns:
            vLLM's ``EmbeddingRequestOutput``s in the order of the prompts. Each vector is in
            ``outputs.embedding``, a list of floats.

        Raises:
            WorkerError: If a prompt is invalid, or the model does not embed.
        """
        renderings = self._prompt_renderings(prompts)
        adapters = self._load_adapters(lora_request, len(renderings))
        calls = [
            partial(self._engine.generation.embed, prompt, self._next_request_id(), adapter)
            for prompt, adapter in zip(self._run_concurrently(renderings), adapters, strict=True)
        ]
        return self._run_concurrently(calls, use_tqdm)

    def _prompt_renderings(self, prompts: Any) -> list[Callable[[], Awaitable[EngineInput]]]:
        # A single prompt is a string, a dict, or a list of token ids.
        items = [prompts] if isinstance(prompts, str | dict) else list(prompts)
        if items and isinstance(items[0], int):
            items = [items]
        render = self._engine.generation.render_prompt
        return [partial(render, prompt) for prompt in items]

    def _complete(
        self,
        renderings: Sequence[Callable[[], Awaitable[EngineInput]]],
        sampling_params: Params | Sequence[Params] | None,
        lora_request: Any,
        use_tqdm: bool,
        constraints: Any = None,
    ) -> list[Any]:
        generation = self._engine.generation
        params = _expand_per_prompt(sampling_params, len(renderings), "sampling_params")
        plans = _convert_distinct(
            params, lambda value: generation.plan_answer(_to_sampling_params(value, constraints))
        )
        adapters = self._load_adapters(lora_request, len(renderings))
        # Render all prompts before the first request, so that the engine's first steps are full.
        prompts = self._run_concurrently(renderings)
        calls = [
            partial(
                generation.generate_full_answer, prompt, planned, self._next_request_id(), adapter
            )
            for prompt, planned, adapter in zip(prompts, plans, adapters, strict=True)
        ]
        return self._run_concurrently(calls, use_tqdm)

    def _load_adapters(self, lora_request: Any, count: int) -> list[Any]:
        """Load the adapters, and return one for each prompt; None for a prompt without one."""
        adapters = self._engine.generation.adapters

        def load(request: Any) -> Any:
            if not request:
                return None
            loading = adapters.get_or_load if isinstance(request, str) else adapters.load_for_script
            return self._run_concurrently([partial(loading, request)])[0]

        return _convert_distinct(_expand_per_prompt(lora_request, count, "lora_request"), load)

    def _next_request_id(self) -> str:
        return f"offline-{next(self._request_numbers)}"

    def _run_concurrently(
        self, calls: Sequence[Callable[[], Awaitable[T]]], use_tqdm: bool = False
    ) -> list[T]:
        """Run all calls concurrently on the engine's loop; the first failure cancels the others."""

        async def run() -> list[T]:
            with tqdm(total=len(calls), desc="Processed prompts", disable=not use_tqdm) as bar:

                async def run_and_count(call: Callable[[], Awaitable[T]]) -> T:
                    result = await call()
                    bar.update()
                    return result

                tasks = [asyncio.create_task(run_and_count(call)) for call in calls]
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
            # Otherwise the engine would continue after Ctrl-C.
            future.cancel()


def _check_argument_names(engine_args: Mapping[str, Any], options: Iterable[str]) -> None:
    """Refuse unknown names of arguments, and warn of those that vLLM has dropped.

    ``options`` are the names of the installed vLLM's options, in upper case.
    """
    names = (
        *options,
        *Settings.model_fields,
        *CANONICAL_NAMES,
        *CANONICAL_NAMES.values(),
        *SPECULATIVE_KEYS,
    )
    known = {name.lower() for name in names}
    for name in engine_args.keys() - known:
        if reason := explain_removal(name.upper()):
            _warn_no_effect(name, reason)
        else:
            raise TypeError(f"LLM: {unknown_key_message(name, known)}")


@functools.cache
def _warn_no_effect(name: str, reason: str) -> None:
    warnings.warn(f"{name} has no effect: {reason}", stacklevel=4)


def _convert_distinct(values: list[Any], convert: Callable[[Any], T]) -> list[T]:
    """Convert all values; an object that occurs several times is converted once."""
    distinct = {id(value): value for value in values}
    converted = {key: convert(value) for key, value in distinct.items()}
    return [converted[id(value)] for value in values]


def _to_sampling_params(params: Params, constraints: Any) -> Any:
    """Add the constraints; return a ``Sampling`` for a dict or None, else vLLM's object.

    ``constraints`` are a dict, an object with such attributes, or None. ``params`` is not changed.
    """
    constraint = (
        constraints if constraints is None or isinstance(constraints, dict) else vars(constraints)
    )
    if params is None or isinstance(params, dict):
        extra = {} if constraint is None else {"guided_options_request": constraint}
        sampling = Sampling.from_params(merge_params(params or {}, extra))
        # Even parameters of a trusted caller must not crash the engine.
        check_parameter_bounds(sampling.body_params, SAMPLING_PARAMS)
        return sampling
    if not isinstance(params, import_from_vllm("SamplingParams")):
        raise TypeError(f"sampling_params: a dict, or vLLM's SamplingParams, not {params!r}")
    if constraint is not None:
        constrained = _to_sampling_params({}, constraint)
        if structured := constrained.vllm_params.get(STRUCTURED_OUTPUTS):
            # Imported here because it imports vLLM.
            from worker.engine.run.sampling import build_structured_outputs  # noqa: PLC0415 - see above

            params = params.clone()
            params.structured_outputs = build_structured_outputs(structured)
    return params


def _expand_per_prompt(value: Any, count: int, name: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{name}: {len(value)} of them for {count} prompts")
    return list(value)
