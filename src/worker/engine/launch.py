"""Starts engines, from their arguments to answers on both paths.

The order is what makes it safe and fast: the cores are forked from the main thread before any
thread exists, out of a process that has imported vLLM; then their clients move to an event loop in
a thread of its own.
"""

import asyncio
import contextlib
import gc
import logging
import threading
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, Protocol

import uvloop
from pydantic import ValidationError

from worker.asgi import Head
from worker.concurrency import jobs_at_once
from worker.engine import Engines
from worker.engine.arguments import EngineArguments
from worker.engine.compile_key import key_of_engines, key_of_models
from worker.engine.healing import starting
from worker.engine.healing.core import Core
from worker.engine.inprocess import InProcessEngine
from worker.engine.locations import find
from worker.engine.machine import this_machine
from worker.engine.model_config import create_model_config
from worker.engine.options.automatic import fitting_tensor_parallel_size, with_renderer_workers
from worker.engine.options.hints import hints
from worker.engine.options.option import reasons
from worker.engine.options.read_ahead import with_load_strategy
from worker.engine.summary import defaults, summary
from worker.engine.translation import START_ERRORS
from worker.errors import StartFailed, in_settings
from worker.job import RawJob
from worker.phases import phase
from worker.settings import Settings
from worker.settings.environment import Default

log = logging.getLogger("worker")

# How long the loop may take to stop the engine's processes.
CLOSE_TIMEOUT_S = 15.0


class CodeCache(Protocol):
    """Code that was compiled in earlier starts, by a key of everything that it depends on."""

    def restore_models(self, key: str) -> bool:
        """Restore what vLLM knows about models; before they are configured."""

    def restore(self, key: str) -> bool:
        """Restore compiled code; before a core starts."""

    def publish(self) -> object:
        """Keep what this start has added, in the background."""


class _Configured(NamedTuple):
    """An engine's final arguments, and the configuration that vLLM made of them."""

    arguments: EngineArguments
    config: Any


@contextlib.contextmanager
def launched(
    settings: Settings,
    engines: Sequence[EngineArguments],
    also_import: Sequence[str] = (),
    compile_cache: CodeCache | None = None,
) -> Iterator[Engines]:
    """Start the engines and warm them up; stop them on leaving. Call on the main thread.

    Args:
        settings: the worker's.
        engines: the arguments of the model's engine, then of an embedder's if there is to be one.
        also_import: modules that will be needed, to be imported while the last core starts.
        compile_cache: of earlier starts.

    Raises:
        StartFailed: with vLLM's message, and no traceback.
    """
    # All cores are started before the first thread.
    with _start_failures(engines[0]):
        configured = _configure_all(engines, compile_cache)
        cores = []
        for number, (arguments, config) in enumerate(configured, 1):
            with phase("engine"):
                imports = also_import if number == len(configured) else None
                cores.append(starting.fork(arguments, config, imports))
    with _loop_in_thread() as loop, contextlib.ExitStack() as stack:
        died: Future[None] = Future()
        running = []
        for (arguments, _), core in zip(configured, cores, strict=True):
            again = partial(_start_again, arguments)
            engine = InProcessEngine(core, arguments, settings, loop, died, again)
            stack.callback(_close, engine)
            _make_ready(engine, arguments)
            running.append(engine)
        wanted = settings.max_concurrency
        for engine, (arguments, config) in zip(running, configured, strict=True):
            log.info(summary(arguments, config, wanted, engine.slots))
            log.info("chosen: %s", "; ".join(map(str, defaults(arguments))))
            # An embedder answers some of the same jobs.
            wanted = jobs_at_once(wanted, running[0].slots)
        if compile_cache:
            compile_cache.publish()
        # vLLM and its imports hold half a million objects permanently: each full garbage collection
        # would halt every stream for a third of a second.
        gc.freeze()
        yield Engines(running[0], running[1] if len(running) > 1 else None, died)


def _close(engine: InProcessEngine) -> None:
    _run(engine.loop, engine.close(), CLOSE_TIMEOUT_S)


def _make_ready(engine: InProcessEngine, arguments: EngineArguments) -> None:
    with phase("app"), _start_failures(arguments):
        _run(engine.loop, engine.open())
    with phase("warm-up"), _start_failures(arguments):
        _run(engine.loop, warm_up(engine))
    _run(engine.loop, engine.prepare())


@contextlib.contextmanager
def _start_failures(arguments: EngineArguments) -> Iterator[None]:
    """Raise what vLLM raises for a model or settings that it can't start with as StartFailed."""
    try:
        yield
    except START_ERRORS as error:
        # Pydantic's own text repeats values, and refers to pages about pydantic.
        text = reasons(error) if isinstance(error, ValidationError) else str(error)
        raise StartFailed(
            f"vLLM could not start {arguments.model_name}: {in_settings(text)}"
        ) from error


def _configure_all(
    engines: Sequence[EngineArguments], compile_cache: CodeCache | None
) -> list[_Configured]:
    """Make vLLM's configurations, and restore what earlier starts have compiled for them."""
    if compile_cache:
        compile_cache.restore_models(key_of_models([engine.vllm.model for engine in engines]))
    configured = [_configure(arguments) for arguments in engines]
    if compile_cache:
        configs = [engine.config for engine in configured]
        compile_cache.restore(key_of_engines(configs, this_machine()))
    return configured


def _start_again(arguments: EngineArguments) -> Core:
    """Start a new core for an engine that died.

    Raises:
        Exception: one of ``START_ERRORS``.
    """
    return starting.spawn(*_configure(arguments))


def _configure(arguments: EngineArguments) -> _Configured:
    """Complete an engine's arguments by what its model's files say, and make the configuration."""
    with phase("weights"):
        # First, because the configuration looks parsers up by name.
        _import_plugins(arguments.vllm)
        final = with_fitting_tensor_parallel_size(with_load_strategy(arguments))
        # Reads the model's configuration; the core will read the weights.
        engine_args = find("AsyncEngineArgs").from_cli_args(final.vllm)
        config = engine_args.create_engine_config(find("UsageContext").OPENAI_API_SERVER)
    for hint in hints(final.vllm):
        log.info("%s: %s", final.vllm.served_model_name[0], hint)
    return _Configured(with_renderer_workers(final, config.model_config), config)


def with_fitting_tensor_parallel_size(arguments: EngineArguments) -> EngineArguments:
    """Make a tensor parallel size that the worker chose fit the model's attention heads."""
    name = "TENSOR_PARALLEL_SIZE"
    if all(default.name != name for default in arguments.defaults):
        return arguments
    gpus: int = arguments.vllm.tensor_parallel_size
    architecture = create_model_config(arguments).model_arch_config
    size = fitting_tensor_parallel_size(gpus, architecture.total_num_attention_heads)
    if size == gpus:
        return arguments
    reason = f"as many of {gpus} GPUs as can share its attention heads"
    return arguments.with_default(Default(name, str(size), reason), size)


def _import_plugins(options: Namespace) -> None:
    """Load parser plugins, as vLLM's launcher does, which the worker doesn't use."""
    if options.tool_parser_plugin:
        find("ToolParserManager").import_tool_parser(options.tool_parser_plugin)
    if options.reasoning_parser_plugin:
        find("ReasoningParserManager").import_reasoning_parser(options.reasoning_parser_plugin)


@contextlib.contextmanager
def _loop_in_thread() -> Iterator[asyncio.AbstractEventLoop]:
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="engine", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _run(loop: asyncio.AbstractEventLoop, step: Any, timeout: float | None = None) -> None:
    asyncio.run_coroutine_threadsafe(step, loop).result(timeout)


async def warm_up(engine: InProcessEngine) -> None:
    """Answer a request on both paths, so that everything is built before the first job.

    Raises:
        StartFailed: a path does not answer.
    """
    generation = engine.generation
    greeting = generation.prompts.greeting
    if "generate" not in engine.model.tasks:
        # There is no request that every model for classification or scoring takes.
        if "embed" in engine.model.tasks:
            prompt = await generation.prompts.render_job(RawJob.read(greeting))
            await generation.embed(prompt, "warm-up")
        return
    one_token = {"max_tokens": 1, "stream": True}
    # An engine that compiles does so for log probabilities when they are first asked for: for
    # seconds, in which the core does nothing else.
    params = {"max_tokens": 1, "logprobs": 0}
    raw = RawJob.read({**greeting, "sampling_params": params, "stream": True})
    async for _ in engine.generate(raw, "warm-up"):
        pass
    path = "/v1/chat/completions" if raw.messages else "/v1/completions"
    body = {**greeting, **one_token}
    async for part in engine.call(path, body, "warm-up"):
        if isinstance(part, Head) and part.status != 200:
            raise StartFailed(f"vLLM's own server answers {part.status} to a first request")
