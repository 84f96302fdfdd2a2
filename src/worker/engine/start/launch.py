"""Starts engines, from their arguments to answers on both paths.

The order is what makes it safe and fast: the cores are forked from the main thread before any
thread exists, out of a process that has imported vLLM; then their clients move to an event loop in
a thread of its own.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

import uvloop

from worker.concurrency import jobs_at_once
from worker.engine import Engines
from worker.engine.arguments import EngineArguments
from worker.engine.compile_key import key_of_engines, key_of_models
from worker.engine.machine import this_machine
from worker.engine.run.absent import AbsentEngine, with_adapters
from worker.engine.run.healing.core import Core
from worker.engine.run.inprocess import InProcessEngine
from worker.engine.seam.inspection import by_forks
from worker.engine.seam.translation import START_ERRORS
from worker.engine.start import cores as starting
from worker.engine.start import fitting
from worker.engine.start.configuring import Configured, configure
from worker.engine.start.fast_loader import with_fast_loader, with_own_loader
from worker.engine.start.parsers import told
from worker.engine.start.refusals import start_failures
from worker.engine.start.warming import warm_up
from worker.engine.summary import defaults, summary
from worker.garbage import uncollected
from worker.phases import phase
from worker.settings import Settings

log = logging.getLogger("worker")

# How long the loop may take to stop the engine's processes.
CLOSE_TIMEOUT_S = 15.0

OTHER_LOADER = "it did not start with the loader that was chosen, so vLLM's own reads the weights"


class CodeCache(Protocol):
    """Code that was compiled in earlier starts, by a key of everything that it depends on."""

    def restore_models(self, key: str) -> bool:
        """Restore what vLLM knows about models; before they are configured."""

    def restore(self, key: str) -> bool:
        """Restore compiled code; before a core starts."""

    def publish(self) -> object:
        """Keep what this start has added, in the background."""


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
    with contextlib.ExitStack() as stack:
        with uncollected(), starting.environ_may_change():
            running, died = _start_all(stack, settings, engines, also_import, compile_cache)
        if compile_cache:
            compile_cache.publish()
        yield Engines(running[0], running[1] if len(running) > 1 else None, died)


def _start_all(
    stack: contextlib.ExitStack,
    settings: Settings,
    engines: Sequence[EngineArguments],
    also_import: Sequence[str],
    compile_cache: CodeCache | None,
) -> tuple[list[InProcessEngine], Future[None]]:
    """Start the engines; return them, and what their deaths resolve. The stack stops them."""
    # All cores are started before the first thread.
    with start_failures(engines[0]), contextlib.ExitStack() as failed:
        if settings.fast_load:
            machine = this_machine()
            engines = [with_fast_loader(engine, machine) for engine in engines]
        configured = _configure_all(engines, compile_cache)
        cores = []
        for number, one in enumerate(configured):
            own = one.config.model_config.max_model_len
            with phase("engine"):
                imports = also_import if number == len(configured) - 1 else None
                started, core = _started(one, imports)
            failed.callback(core.close)
            cores.append(core)
            configured[number] = started
            if line := fitting.told(*started, own, settings.min_model_len):
                log.warning(line)
        failed.pop_all()
    loop = stack.enter_context(_loop_in_thread())
    died: Future[None] = Future()
    running = []
    for (arguments, config), core in zip(configured, cores, strict=True):
        # With the same context: the requests that it has accepted begin again on the next core.
        context = config.model_config.max_model_len
        again = partial(_start_again, arguments.with_options(max_model_len=context))
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
    return running, died


@contextlib.contextmanager
def without_engine(settings: Settings, arguments: EngineArguments) -> Iterator[Engines]:
    """Make ready what trains adapters for a model, without an engine. Call on the main thread.

    Raises:
        StartFailed: with vLLM's message: it could not serve the model either.
    """
    with start_failures(arguments), by_forks():
        final, config = _configure(with_adapters(arguments))
    with _loop_in_thread() as loop:
        engine = AbsentEngine(final, config, settings.base_path, loop)
        log.info("model: %s: this worker trains adapters, and serves nothing", final.model_name)
        yield Engines(engine, serve=False)


def _close(engine: InProcessEngine) -> None:
    _run(engine.loop, engine.close(), CLOSE_TIMEOUT_S)


def _make_ready(engine: InProcessEngine, arguments: EngineArguments) -> None:
    with phase("app"), start_failures(arguments):
        _run(engine.loop, engine.open())
    with phase("warm-up"), start_failures(arguments):
        _run(engine.loop, warm_up(engine))
    _run(engine.loop, engine.prepare())


def _configure_all(
    engines: Sequence[EngineArguments], compile_cache: CodeCache | None
) -> list[Configured]:
    """Make vLLM's configurations, and restore what earlier starts have compiled for them."""
    if compile_cache:
        compile_cache.restore_models(key_of_models([engine.vllm.model for engine in engines]))
    with by_forks():
        configured = [_configure(arguments) for arguments in engines]
    if compile_cache:
        configs = [engine.config for engine in configured]
        compile_cache.restore(key_of_engines(configs, this_machine()))
    return configured


def _started(one: Configured, also_import: Sequence[str] | None) -> tuple[Configured, Core]:
    """Start an engine's first core, and a second one if there is something to do without.

    Args:
        one: the engine.
        also_import: as of ``starting.fork``.

    Raises:
        Exception: one of ``START_ERRORS``.
    """
    try:
        return one, starting.fork(one.arguments, one.config, also_import)
    except START_ERRORS as error:
        if (second := second_try(one, str(error))) is None:
            raise
        again, doing = second
        log.warning("%s: %s: %s", one.arguments.model_name, doing, error)
    # Outside of the handler, so that nothing keeps what is left of the first one.
    one = _configure(again)
    return one, starting.spawn(*one)


def second_try(one: Configured, reason: str) -> tuple[EngineArguments, str] | None:
    """Return an engine's arguments for a second core, and what it does without; None for none.

    It takes less memory if the first was short of it, and vLLM's own loader.

    Args:
        one: the engine.
        reason: why the first core did not start.
    """
    own = with_own_loader(one.arguments)
    if fitting.is_out_of_memory(reason) and (less := fitting.with_less(own, one.config)):
        return less, fitting.SECOND_TRY
    return None if own is one.arguments else (own, OTHER_LOADER)


def _start_again(arguments: EngineArguments) -> Core:
    """Start a new core for an engine that died.

    Raises:
        Exception: one of ``START_ERRORS``, or ``StartFailed``.
    """
    with starting.environ_may_change():
        return starting.spawn(*_configure(arguments))


def _configure(arguments: EngineArguments) -> Configured:
    with phase("weights"):
        configured = configure(arguments)
    for line in told(arguments.vllm):
        log.info("%s: %s", arguments.vllm.served_model_name[0], line)
    return configured


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
