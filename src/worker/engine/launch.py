"""From settings to a warm engine: the one way to start it, in the one order that is safe and fast.

The engine's core is forked from the main thread before any thread exists, out of a process that
has imported vLLM once; then its client moves to an event loop in a thread of its own.
"""

import asyncio
import contextlib
import gc
import importlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
import uvloop
from pydantic import ValidationError

from worker.asgi import Head
from worker.engine import Engines
from worker.engine.arguments import EngineArguments
from worker.engine.compile_key import of_configurations, of_models
from worker.engine.inprocess import InProcessEngine, Started, take_metrics
from worker.engine.locations import LOCATIONS, find
from worker.engine.machine import machine
from worker.engine.options import REFUSALS
from worker.engine.options.automatic import fitting_tensor_parallel_size
from worker.engine.options.hints import hints
from worker.engine.options.option import reasons
from worker.engine.options.read_ahead import with_load_strategy
from worker.engine.summary import defaults, summary
from worker.errors import StartFailed, in_settings
from worker.job import RawJob
from worker.phases import phase
from worker.settings import Settings
from worker.settings.environment import Default, is_set, overwrite

log = logging.getLogger("worker")

# One start at a time: the next one would take away what vLLM has begun to count.
_starting = threading.Lock()

# How long the loop may take to stop the engine's processes.
CLOSE_TIMEOUT_S = 15.0


class Compiled(Protocol):
    """What was compiled in earlier starts, for a key that names all that it depends on."""

    def restore_models(self, key: str) -> bool:
        """Bring back what is known of models; before their configuration is made."""

    def restore(self, key: str) -> bool:
        """Bring back what was compiled; before a core starts."""

    def publish(self) -> object:
        """Keep what this start has added, in the background."""


class _Configured(NamedTuple):
    """vLLM's configuration of an engine, and the arguments that it was made of."""

    arguments: EngineArguments
    config: Any


@contextlib.contextmanager
def launched(
    settings: Settings,
    arguments: EngineArguments,
    also_import: Sequence[str] = (),
    embedder: EngineArguments | None = None,
    compiled: Compiled | None = None,
) -> Iterator[Engines]:
    """Start the engines and warm them up; stop them on leaving. Call on the main thread.

    Args:
        settings: the worker's.
        arguments: vLLM's.
        also_import: modules that will be needed, to be imported while the last core starts.
        embedder: vLLM's for an embedder beside the model, if there is to be one.
        compiled: of earlier starts.

    Raises:
        StartFailed: with what vLLM said, and no traceback.
    """
    several = [arguments] if embedder is None else [arguments, embedder]
    # Every core before the first thread.
    with _failures_told(arguments):
        configured = _all_configured(several, compiled)
        all_started = [
            _started(each, also_import if each is configured[-1] else None) for each in configured
        ]
    with _loop_in_thread() as loop, contextlib.ExitStack() as stack:
        died: Future[None] = Future()
        engines = []
        for (final, _), started in zip(configured, all_started, strict=True):
            again = None if embedder is None else partial(_started_again, final)
            engine = InProcessEngine(started, final, settings, loop, died, again)
            stack.callback(_close, engine)
            _make_ready(engine, final)
            engines.append(engine)
        for (final, _), (client, _) in zip(configured, all_started, strict=True):
            log.info(summary(final, client.vllm_config, settings.max_concurrency))
            log.info("chosen: %s", "; ".join(map(str, defaults(final))))
        if compiled:
            compiled.publish()
        # What vLLM and its imports hold, half a million objects, is there to stay: looking
        # through it again and again would halt every stream for a third of a second.
        gc.freeze()
        yield Engines(engines[0], None if embedder is None else engines[1], died)


def _close(engine: InProcessEngine) -> None:
    _run(engine.loop, engine.close(), CLOSE_TIMEOUT_S)


def _make_ready(engine: InProcessEngine, arguments: EngineArguments) -> None:
    with phase("app"), _failures_told(arguments):
        _run(engine.loop, engine.open())
    with phase("warm-up"), _failures_told(arguments):
        _run(engine.loop, warm_up(engine))


@contextlib.contextmanager
def _failures_told(arguments: EngineArguments) -> Iterator[None]:
    """Tell what vLLM raises for a model, or for settings, that it can't start with."""
    try:
        yield
    except REFUSALS as error:
        # Pydantic's own words repeat values, and point to pages about itself.
        told = reasons(error) if isinstance(error, ValidationError) else str(error)
        raise StartFailed(
            f"vLLM could not start {arguments.model_name}: {in_settings(told)}"
        ) from error


def _all_configured(
    several: Sequence[EngineArguments], compiled: Compiled | None
) -> list[_Configured]:
    """Make vLLM's configurations, with what earlier starts have found out and compiled."""
    if compiled:
        compiled.restore_models(of_models([each.vllm.model for each in several]))
    configured = [_configured(each) for each in several]
    if compiled:
        compiled.restore(of_configurations([each.config for each in configured], machine()))
    return configured


def _started(configured: _Configured, also_import: Sequence[str] | None) -> Started:
    """Start an engine's core by a fork of this process, while it has one thread.

    With ``also_import``, threads may begin once the core is forked.
    """
    with phase("engine"):
        if find("current_platform").is_cpu():
            _prepare_cpu()
        # Several cores are forked one after the other: no thread may begin between them.
        if also_import is not None and configured.config.parallel_config.data_parallel_size == 1:
            _import_while_core_starts([*LOCATIONS["build_app"][:1], *also_import])
        return _client(configured)


def _started_again(arguments: EngineArguments) -> Started:
    """Start the core of an engine that died once more, in a process that is full of threads.

    Raises:
        Exception: one of vLLM's ``REFUSALS``.
    """
    # A fork would copy locks that other threads hold. What it would inherit is in the environment.
    overwrite("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    if find("current_platform").is_cpu() and not is_set("OMP_NUM_THREADS"):
        overwrite("OMP_NUM_THREADS", str(torch.get_num_threads()))
    return _client(_configured(arguments))


def _configured(arguments: EngineArguments) -> _Configured:
    with phase("weights"):
        # Before the configuration, which looks parsers up by their names.
        _import_plugins(arguments)
        # Finds the model and reads its configuration; the core reads the weights themselves.
        final = with_fitting_tensor_parallel_size(with_load_strategy(arguments))
        engine_args = find("AsyncEngineArgs").from_cli_args(final.vllm)
        config = engine_args.create_engine_config(find("UsageContext").OPENAI_API_SERVER)
    for hint in hints(final.vllm):
        log.info("%s: %s", final.vllm.served_model_name[0], hint)
    return _Configured(final, config)


def with_fitting_tensor_parallel_size(arguments: EngineArguments) -> EngineArguments:
    """Make a tensor parallel size that the worker chose fit the model's attention heads."""
    name = "TENSOR_PARALLEL_SIZE"
    if all(default.name != name for default in arguments.defaults):
        return arguments
    gpus: int = arguments.vllm.tensor_parallel_size
    config = find("AsyncEngineArgs").from_cli_args(arguments.vllm).create_model_config()
    size = fitting_tensor_parallel_size(gpus, config)
    if size == gpus:
        return arguments
    reason = f"as many of {gpus} GPUs as can share its attention heads"
    return arguments.with_default(Default(name, str(size), reason), size)


def _client(configured: _Configured) -> Started:
    log_requests = configured.arguments.vllm.enable_log_requests
    with _starting:
        client = find("AsyncLLM").from_vllm_config(
            configured.config, enable_log_requests=log_requests
        )
        return client, take_metrics()


def _prepare_cpu() -> None:
    # vLLM's CPU backend has just asked for a fresh interpreter: a second import of vLLM.
    overwrite("VLLM_WORKER_MULTIPROC_METHOD", "fork")
    # The core inherits this, and keeps it. OpenMP's threads spin while they wait for each other:
    # with one on every core, whatever else runs (this process, a client) makes them a hundred
    # times slower.
    if not is_set("OMP_NUM_THREADS"):
        torch.set_num_threads(max(1, torch.get_num_threads() - 1))


def _import_while_core_starts(modules: Sequence[str]) -> None:
    """Import modules in a thread that begins right after the next fork.

    The core takes seconds to start, and this process would only wait. Before the fork a thread
    would be dangerous: what it holds, the child would find held for ever.
    """
    pending, parent = list(modules), os.getpid()

    def begin() -> None:
        # The hook can't be taken back: it also runs at later forks, and in the child's.
        if pending and os.getpid() == parent:
            names, pending[:] = tuple(pending), []
            threading.Thread(target=_import_all, args=(names,), name="import").start()

    os.register_at_fork(after_in_parent=begin)


def _import_all(modules: Sequence[str]) -> None:
    for module in modules:
        # Whoever needs the module imports it again, and then a failure is told where it matters.
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


def _import_plugins(arguments: EngineArguments) -> None:
    """Load parser plugins, which vLLM's launcher, not its app, does."""
    if arguments.vllm.tool_parser_plugin:
        find("ToolParserManager").import_tool_parser(arguments.vllm.tool_parser_plugin)
    if arguments.vllm.reasoning_parser_plugin:
        find("ReasoningParserManager").import_reasoning_parser(
            arguments.vllm.reasoning_parser_plugin
        )


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
    """Answer on both paths, so that the first job finds everything built.

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
    raw = RawJob.read({**greeting, "sampling_params": {"max_tokens": 1}, "stream": True})
    async for _ in engine.generate(raw, "warm-up"):
        pass
    path = "/v1/chat/completions" if raw.messages else "/v1/completions"
    body = {**greeting, **one_token}
    async for part in engine.call(path, body, "warm-up"):
        if isinstance(part, Head) and part.status != 200:
            raise StartFailed(f"vLLM's own server answers {part.status} to a first request")
