"""Starts engines, from their arguments to answers on both paths.

The order is what makes it safe and fast: the cores are forked from the main thread before any
thread exists, out of a process that has imported vLLM; then their clients move to an event loop in
a thread of its own.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

import uvloop

from worker.engine import Engines
from worker.engine.arguments import EngineArguments, StartContext
from worker.engine.compile_key import key_of_engines, key_of_models
from worker.engine.description import defaults, summary
from worker.engine.run.healing.core import Core
from worker.engine.run.inprocess import InProcessEngine
from worker.engine.run.requests import media
from worker.engine.run.unserved import UnservedModel
from worker.engine.seam.inspection import by_forks
from worker.engine.seam.translation import START_ERRORS
from worker.engine.start import Start, cores, fitting
from worker.engine.start.configuring import Configured, configure
from worker.engine.start.first_request import warm_up
from worker.engine.start.parsers import told
from worker.engine.start.refusals import start_failures
from worker.engine.start.tables import RESTART, second_try
from worker.process.concurrency import jobs_at_once
from worker.process.garbage import uncollected
from worker.process.phases import phase
from worker.settings.environment import export

log = logging.getLogger("worker")

# How long the loop may take to stop the engine's processes.
CLOSE_TIMEOUT_S = 15.0


@contextlib.contextmanager
def launched(start: Start, also_import: Sequence[str] = ()) -> Iterator[Engines]:
    """Start the engines and warm them up; stop them on leaving. Call on the main thread.

    ``also_import`` are modules that will be needed, to be imported while the last core starts.

    Raises:
        StartFailed: with vLLM's message, and no traceback.
    """
    with contextlib.ExitStack() as stack:
        with uncollected(), cores.environ_may_change(), start.read_ahead:
            engines = _start_all(stack, start, also_import)
        if start.compile_cache:
            start.compile_cache.publish()
        yield engines


def _start_all(  # noqa: PLR0915 - the story of a start, in its order
    stack: contextlib.ExitStack, start: Start, also_import: Sequence[str]
) -> Engines:
    """Start the engines; the stack stops them."""
    settings = start.settings
    # vLLM, and libraries that decode media, read them.
    export(media.EXPORTS)
    # All cores are started before the first thread.
    with start_failures(start.arguments), contextlib.ExitStack() as failed:
        started = []
        configured = _configure_all(start)
        for one in configured:
            own = one.config.model_config.max_model_len
            with phase("engine"):
                imports = also_import if one is configured[-1] else None
                final, core = _start(one, start.context, imports)
            failed.callback(core.close)
            started.append((final, core))
            if line := fitting.told(*final, own, settings.min_model_len):
                log.warning(line)
        failed.pop_all()
    loop = stack.enter_context(_loop_in_thread())
    died: Future[None] = Future()
    running = []
    for final, core in started:
        again = partial(_start_again, final, start.context)
        engine = InProcessEngine(core, final.arguments, settings, loop, died, again)
        stack.callback(_run, loop, engine.close, CLOSE_TIMEOUT_S)
        with start_failures(final.arguments):
            with phase("app"):
                _run(loop, engine.open)
            with phase("warm-up"):
                _run(loop, partial(warm_up, engine))
        _run(loop, engine.prepare)
        running.append(engine)
    wanted = settings.max_concurrency
    for engine, ((arguments, config), _) in zip(running, started, strict=True):
        log.info(summary(arguments, config, wanted, engine.slots))
        log.info("chosen: %s", "; ".join(map(str, defaults(arguments))))
        # An embedder answers some of the same jobs.
        wanted = jobs_at_once(wanted, running[0].slots)
    return Engines(*running, died=died)


@contextlib.contextmanager
def without_engine(start: Start, _: Sequence[str] = ()) -> Iterator[Engines]:
    """Make ready what trains adapters for a model, without an engine. Call on the main thread.

    Raises:
        StartFailed: with vLLM's message: it could not serve the model either.
    """
    # What trains reads the weights later.
    start.read_ahead.close()
    with start_failures(start.arguments), by_forks():
        final, config = _configure(start.arguments, replace(start.context, trains=True))
    with _loop_in_thread() as loop:
        base = UnservedModel(final, config, start.settings.base_path, loop)
        log.info("model: %s: this worker trains adapters, and serves nothing", final.model_name)
        yield Engines(base=base)


def _configure_all(start: Start) -> list[Configured]:
    """Make vLLM's configurations, and restore what earlier starts have compiled for them."""
    cache = start.compile_cache
    if cache:
        cache.restore_models(key_of_models([engine.model_name for engine in start.engines]))
    with by_forks():
        configured = [_configure(arguments, start.context) for arguments in start.engines]
    if cache:
        configs = [engine.config for engine in configured]
        cache.restore(key_of_engines(configs, start.context.machine))
    return configured


def _start(
    one: Configured, context: StartContext, also_import: Sequence[str] | None
) -> tuple[Configured, Core]:
    """Start an engine's first core, and a second one if there is something to do without."""
    try:
        return one, cores.fork(*one, also_import)
    except START_ERRORS as error:
        if (second := second_try(*one, str(error))) is None:
            raise
        again, doing = second
        log.warning("%s: %s: %s", one.arguments.model_name, doing, error)
    # Outside of the handler, so that nothing keeps what is left of the first one.
    one = _configure(again, context)
    return one, cores.spawn(*one)


def _start_again(one: Configured, context: StartContext) -> Core:
    """Start a new core for an engine that died."""
    arguments = one.arguments
    for change in RESTART:
        arguments = change(arguments, one.config)
    with cores.environ_may_change():
        return cores.spawn(*_configure(arguments, context))


def _configure(arguments: EngineArguments, context: StartContext) -> Configured:
    with phase("weights"):
        configured = configure(arguments, context)
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


def _run(
    loop: asyncio.AbstractEventLoop,
    step: Callable[[], Coroutine[Any, Any, None]],
    timeout: float | None = None,
) -> None:
    asyncio.run_coroutine_threadsafe(step(), loop).result(timeout)
