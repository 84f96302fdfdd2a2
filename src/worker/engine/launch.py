"""From settings to a warm engine: the one way to start it, in the one order that is safe and fast.

The engine's core is forked from the main thread before any thread exists, out of a process that
has imported vLLM once; then its client moves to an event loop in a thread of its own.
"""

import asyncio
import contextlib
import gc
import importlib
import json
import os
import threading
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import uvloop

from worker import asgi
from worker.engine.inprocess import InProcessEngine
from worker.engine.locations import LOCATIONS, find
from worker.engine.options import REFUSALS
from worker.errors import StartFailed
from worker.job import RawJob
from worker.phases import phase
from worker.settings import Settings, is_set, overwrite

# How long the loop may take to stop the engine's processes.
CLOSE_TIMEOUT_S = 15.0


@contextlib.contextmanager
def launched(
    settings: Settings, arguments: Namespace, also_import: Sequence[str] = ()
) -> Iterator[InProcessEngine]:
    """Start the engine and warm it up; stop it on leaving. Call on the main thread.

    Args:
        settings: the worker's.
        arguments: vLLM's.
        also_import: modules that will be needed, to be imported while the core starts.

    Raises:
        StartFailed: with what vLLM said, and no traceback.
    """
    arguments.enable_log_requests |= not settings.disable_log_requests
    with _failures_told(settings):
        client = _client(arguments, also_import)
    with _loop_in_thread() as loop:
        engine = InProcessEngine(client, arguments, settings, loop)
        try:
            with phase("app"), _failures_told(settings):
                _run(loop, engine.open())
            with phase("warm-up"), _failures_told(settings):
                _run(loop, warm_up(engine))
                # What vLLM and its imports hold, half a million objects, is there to stay: looking
                # through it again and again would halt every stream for a third of a second.
                gc.freeze()
            yield engine
        finally:
            _run(loop, engine.close(), CLOSE_TIMEOUT_S)


@contextlib.contextmanager
def _failures_told(settings: Settings) -> Iterator[None]:
    """Tell what vLLM raises for a model, or for settings, that it can't start with."""
    try:
        yield
    except REFUSALS as error:
        raise StartFailed(f"vLLM could not start {settings.model_name}: {error}") from error


def _client(arguments: Namespace, also_import: Sequence[str]) -> Any:
    with phase("weights"):
        # Finds the model and reads its configuration; the core reads the weights themselves.
        engine_args = find("AsyncEngineArgs").from_cli_args(arguments)
        config = engine_args.create_engine_config(find("UsageContext").OPENAI_API_SERVER)
        _import_plugins(arguments)
    with phase("engine"):
        if find("current_platform").is_cpu():
            _prepare_cpu()
        # Several cores are forked one after the other: no thread may begin between them.
        if arguments.data_parallel_size == 1:
            _import_while_core_starts([*LOCATIONS["build_app"][:1], *also_import])
        return find("AsyncLLM").from_vllm_config(
            config, enable_log_requests=arguments.enable_log_requests
        )


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


def _import_plugins(arguments: Namespace) -> None:
    """Load parser plugins, which vLLM's launcher, not its app, does."""
    if arguments.tool_parser_plugin:
        find("ToolParserManager").import_tool_parser(arguments.tool_parser_plugin)
    if arguments.reasoning_parser_plugin:
        find("ReasoningParserManager").import_reasoning_parser(arguments.reasoning_parser_plugin)


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
    greeting = engine.prompts.greeting
    if not engine.generates:
        await engine.embed(await engine.prompts.render(RawJob.read(greeting)), "warm-up")
        return
    one_token = {"max_tokens": 1, "stream": True}
    raw = RawJob.read({**greeting, "sampling_params": {"max_tokens": 1}, "stream": True})
    async for _ in engine.generate(raw, "warm-up"):
        pass
    path = "/v1/chat/completions" if raw.messages else "/v1/completions"
    body = json.dumps({**greeting, **one_token}).encode()
    async for part in asgi.call(engine.app, asgi.Request("POST", path, body, "warm-up")):
        if isinstance(part, asgi.Head) and part.status != 200:
            raise StartFailed(f"vLLM's own server answers {part.status} to a first request")
