"""``LLM``: the worker's engine for a script of one's own, with no platform around it."""

import asyncio
import contextlib
import functools
import itertools
import json
import logging
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeVar

from tqdm import tqdm

from worker.engine.locations import find
from worker.job import RawJob
from worker.job.base import unknown_key
from worker.job.sampling import STRUCTURED, Sampling
from worker.settings import ALIASES, REMOVED, Settings, engine_environ

log = logging.getLogger(__name__)

T = TypeVar("T")

# vLLM's SamplingParams, or what a job's ``sampling_params`` may hold.
Params = Any


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
        environ = {name.upper(): _written(value) for name, value in given.items()}
        settings = Settings.from_env(environ)
        settings.export()
        # Here, because it takes seconds and reads the environment that was just completed.
        from worker.engine import launch, options  # noqa: PLC0415 - see above

        known = options.Options()
        _refuse_unknown(engine_args, known.names)
        stack = contextlib.ExitStack()
        arguments = known.parse(engine_environ(environ))
        self._engine = stack.enter_context(launch.launched(settings, arguments))
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
            lora_request: vLLM's ``LoRARequest``: one for all, or one (or None) for each prompt.
            prompt_adapter_request: gone from vLLM; a warning says so.
            guided_options_request: what the texts are held to (``guided_json`` and so on).

        Returns:
            vLLM's ``RequestOutput``s in the order of the prompts.

        Raises:
            ValueError: lists of different lengths.
            WorkerError: a prompt or a parameter that is refused.
        """
        if prompt_adapter_request is not None:
            _warn_once("prompt_adapter_request", "vLLM has no prompt adapters any more")
        listed = _listed(prompts if prompt_token_ids is None else prompt_token_ids)
        rendering = [partial(self._engine.prompts.complete, prompt) for prompt in listed]
        return self._answers(
            rendering, sampling_params, lora_request, use_tqdm, guided_options_request
        )

    def chat(
        self,
        messages: list[Any],
        sampling_params: Params | Sequence[Params] | None = None,
        use_tqdm: bool = True,
        lora_request: Any = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        **rendering: Any,
    ) -> list[Any]:
        """Answer a conversation, or a list of them.

        Args:
            messages: as in OpenAI's API, images included.
            sampling_params: one for all, or one for each conversation.
            use_tqdm: whether to show a bar.
            lora_request: as in ``generate``.
            chat_template: a Jinja template in place of the model's own.
            add_generation_prompt: whether the template begins a turn of the assistant.
            rendering: ``tools``, ``chat_template_kwargs``, ``continue_final_message``.

        Returns:
            vLLM's ``RequestOutput``s in the order of the conversations.

        Raises:
            ValueError: lists of different lengths.
            WorkerError: a message or a parameter that is refused.
        """
        listed = messages if messages and isinstance(messages[0], list) else [messages]
        shared = {"add_generation_prompt": add_generation_prompt, **rendering}
        jobs = [RawJob.read({"messages": conversation, **shared}) for conversation in listed]
        chats = [partial(self._engine.prompts.render, job, chat_template) for job in jobs]
        return self._answers(chats, sampling_params, lora_request, use_tqdm)

    def embed(self, prompts: Any, use_tqdm: bool = True, lora_request: Any = None) -> list[Any]:
        """Embed prompts with a model that does (``runner="pooling"``, where it can do both).

        Returns:
            vLLM's ``EmbeddingRequestOutput``s in the order of the prompts; the vector of each is
            ``outputs.embedding``, a list of floats.

        Raises:
            WorkerError: a prompt that is refused, or a model that does not embed.
        """
        rendering = [partial(self._engine.prompts.complete, prompt) for prompt in _listed(prompts)]
        adapters = self._adapters(lora_request, len(rendering))
        calls = [
            partial(self._engine.embed, render, self._request_id(), adapter)
            for render, adapter in zip(rendering, adapters, strict=True)
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
        params = _each(sampling_params, len(rendering), "sampling_params")
        # Planned once for all that share it.
        distinct = {id(one): one for one in params}
        plans = {key: self._engine.plan(_sampling(one, guided)) for key, one in distinct.items()}
        adapters = self._adapters(lora_request, len(rendering))
        calls = [
            partial(self._engine.complete, render, plans[id(one)], self._request_id(), adapter)
            for render, one, adapter in zip(rendering, params, adapters, strict=True)
        ]
        return self._run(calls, use_tqdm)

    def _adapters(self, lora_request: Any, count: int) -> list[Any]:
        """Load the adapters, and return one for each prompt."""
        adapters = _each(lora_request, count, "lora_request")
        distinct = {adapter.lora_int_id: adapter for adapter in adapters if adapter is not None}
        self._run([partial(self._engine.load, one) for one in distinct.values()], use_tqdm=False)
        return adapters

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

        future = asyncio.run_coroutine_threadsafe(run(), self._engine.loop)
        try:
            return future.result()
        finally:
            # Left by Ctrl-C, the engine would go on.
            future.cancel()


def _written(value: Any) -> str:
    """Write an argument as an operator would write the setting of that name."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "1" if value else "0"
    return json.dumps(value) if isinstance(value, dict | list | tuple) else str(value)


def _refuse_unknown(engine_args: Mapping[str, Any], options: Iterable[str]) -> None:
    known = {name.lower() for name in (*options, *Settings.model_fields, *ALIASES)}
    for name in engine_args:
        if name.upper() in REMOVED:
            _warn_once(name, REMOVED[name.upper()])
        elif name not in known:
            raise TypeError(f"LLM: {unknown_key(name, known)}")


@functools.cache
def _warn_once(name: str, why: str) -> None:
    log.warning("%s has no effect: %s", name, why)


def _listed(prompts: Any) -> list[Any]:
    """Make a list of prompts of one: a text, a dict, or a list of ids."""
    one = isinstance(prompts, str | dict) or (bool(prompts) and isinstance(prompts[0], int))
    return [prompts] if one else list(prompts)


def _sampling(params: Params, guided: Any) -> Any:
    """Read parameters as a job's would be; vLLM's own object is taken as it is."""
    held = guided if guided is None or isinstance(guided, dict) else vars(guided)
    if params is None or isinstance(params, dict):
        beside = {} if held is None else {"guided_options_request": held}
        return RawJob.read(
            {"prompt": "", "sampling_params": params or {}, **beside}
        ).sampling_params
    if held is not None:
        params = params.clone()
        structured = Sampling.model_validate({"guided_options_request": held}).vllm[STRUCTURED]
        params.structured_outputs = find("StructuredOutputsParams")(**structured)
    return params


def _each(given: Any, count: int, name: str) -> list[Any]:
    """Give every prompt its own of a list; what is no list, all prompts share."""
    if not isinstance(given, list):
        return [given] * count
    if len(given) != count:
        raise ValueError(f"{name}: {len(given)} of them for {count} prompts")
    return given
