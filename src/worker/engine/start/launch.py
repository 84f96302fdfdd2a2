"""Starts engines, from their arguments to the first responses to raw and OpenAI requests.

The order makes the startup safe and fast. The cores are forked from the main thread before any
other thread exists, by a process that has already imported vLLM. Then their clients move to an
event loop in a separate thread.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import platform
import re
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import torch
import uvloop
import vllm
import vllm.envs

from worker.asgi import ResponseHead
from worker.engine import Engines
from worker.engine.arguments import EngineArguments
from worker.engine.machine import Machine
from worker.engine.run.core import Core
from worker.engine.run.description import chosen_defaults, summary_line
from worker.engine.run.generation import example_input
from worker.engine.run.inprocess import InProcessEngine, UnservedModel
from worker.engine.run.requests import media
from worker.engine.seam.imports import inspect_in_forks
from worker.engine.start import Start, checks, cores
from worker.engine.start.configuring import configure_engine
from worker.engine.start.parsers import parser_hints
from worker.engine.start.refusals import explain_start_errors
from worker.engine.start.tables import RESTART_STEPS, choose_fallback_arguments
from worker.errors import StartFailed
from worker.job import RawJob
from worker.process.concurrency import max_jobs_from_queue
from worker.process.lifetime import log_phase, pause_and_freeze_gc
from worker.settings.environment import set_unset_variables

log = logging.getLogger("worker")

# Seconds that the event loop may take to stop an engine's processes.
CLOSE_TIMEOUT_S = 15.0
CPU_INFO = Path("/proc/cpuinfo")
# The /proc/cpuinfo fields with a processor's features, on x86 and on Arm.
_FEATURE_FIELDS = ("flags", "Features")


@contextlib.contextmanager
def launch_engines(start: Start, modules_to_import: Sequence[str] = ()) -> Iterator[Engines]:
    """Start the engines, warm them up and store the code that they compiled; stop them on exit.

    Call this on the main thread. ``modules_to_import`` are imported while the last core starts.
    """
    with contextlib.ExitStack() as stack:
        # The generator must not refer to the first cores, which are freed when others replace them.
        yield _start_engines(start, modules_to_import, stack)


def _start_engines(
    start: Start, modules_to_import: Sequence[str], stack: contextlib.ExitStack
) -> Engines:
    settings, cache = start.settings, start.compile_cache
    with pause_and_freeze_gc(), cores.allow_environ_changes(), start.read_ahead:
        # vLLM and the libraries that decode media read these variables.
        set_unset_variables(media.ENVIRONMENT)
        if cache:
            cache.restore_model_info(
                model_info_cache_key([one.model_name for one in start.engines])
            )
        with inspect_in_forks():
            engines = [_configure(arguments, start) for arguments in start.engines]
        if cache:
            configs = [engine.config for engine in engines]
            cache.restore_code(compiled_code_key(configs, start.machine))
        # All cores must be forked before the first thread starts.
        with contextlib.ExitStack() as cleanup:
            engine_cores = []
            for number, engine in enumerate(engines):
                model_context = engine.config.model_config.max_model_len
                with log_phase("engine"):
                    imports = modules_to_import if engine is engines[-1] else None
                    engines[number], core = _start_core_or_fallback(engine, start, imports)
                cleanup.callback(core.stop_and_get_reason)
                engine_cores.append(core)
                if warning := checks.short_context_warning(
                    engine, model_context, settings.min_model_len
                ):
                    log.warning(warning)
            cleanup.pop_all()
        loop = stack.enter_context(_event_loop_in_thread())
        died: Future[None] = Future()
        running = []
        for engine, core in zip(engines, engine_cores, strict=True):
            restart = partial(_restart_core, engine, start)
            in_process = InProcessEngine(core, engine, settings, loop, died, restart)
            stack.callback(_run_on_loop, loop, in_process.close, CLOSE_TIMEOUT_S)
            with explain_start_errors(engine):
                with log_phase("app"):
                    _run_on_loop(loop, in_process.use_first_core)
                with log_phase("warm-up"), cores.explain_death(core):
                    _run_on_loop(loop, partial(warm_up, in_process, engine))
            _run_on_loop(loop, in_process.start_watching)
            running.append(in_process)
        concurrency = settings.max_concurrency
        for engine, in_process in zip(engines, running, strict=True):
            log.info(summary_line(engine, concurrency, in_process.slots))
            log.info("chosen: %s", "; ".join(map(str, chosen_defaults(engine))))
            # The embedder's engine serves jobs from the same queue, so its log line is based on
            # the number of jobs that the main model's engine allows.
            concurrency = max_jobs_from_queue(concurrency, running[0].slots)
    if cache:
        cache.start_publishing()
    return Engines(*running, died=died)


@contextlib.contextmanager
def launch_without_engine(start: Start, _: Sequence[str] = ()) -> Iterator[Engines]:
    """Prepare the training of adapters without an engine. Call this on the main thread."""
    # Stop reading the weights into the page cache: training reads them only later.
    start.read_ahead.close()
    start.only_trains = True
    with inspect_in_forks():
        arguments = _configure(start.main_arguments, start)
    with _event_loop_in_thread() as loop:
        base_model = UnservedModel(arguments, start.settings.base_path, loop)
        log.info("model: %s: this worker only trains adapters", arguments.model_name)
        yield Engines(base_model=base_model)


def model_info_cache_key(models: Sequence[str]) -> str:
    """Return the key of the information about model classes that vLLM needs to configure models."""
    return _build_key_name([], [platform.python_version(), *models])


def compiled_code_key(configurations: Sequence[Any], machine: Machine) -> str:
    """Return the cache key for the code that is compiled for engines.

    ``configurations`` are vLLM's, before an engine starts. The key covers the same data as the
    hashes of vLLM's own cache. That includes the model's path, so the same model in another
    directory has another key.
    """
    gpus = [gpu.name for gpu in machine.gpus]
    devices = f"{len(gpus)}x-{'-'.join(dict.fromkeys(gpus))}" if gpus else "cpu"
    features = ""
    # Code for a CPU is compiled for its exact features; on a GPU the CPU doesn't matter.
    if machine.cpu and CPU_INFO.is_file():
        lines = (line.partition(":") for line in CPU_INFO.read_text().splitlines())
        # All processors of a machine have the same features.
        features = next(
            (text.strip() for name, _, text in lines if name.strip() in _FEATURE_FIELDS), ""
        )
    variables = vllm.envs.compile_factors()
    return _build_key_name(
        [f"torch-{torch.__version__}", devices],
        [
            platform.python_version(),
            features,
            json.dumps(variables, sort_keys=True, default=str),
            *(configuration.compute_hash() for configuration in configurations),
        ],
    )


def _build_key_name(readable: Sequence[str], hashed: Sequence[str]) -> str:
    words = [f"vllm-{vllm.__version__}", *readable]
    digest = hashlib.sha256(json.dumps([*words, *hashed]).encode()).hexdigest()[:16]
    return "_".join([*(re.sub(r"[^\w.+-]+", "-", word) for word in words), digest])


def _start_core_or_fallback(
    engine: EngineArguments, start: Start, modules_to_import: Sequence[str] | None
) -> tuple[EngineArguments, Core]:
    with explain_start_errors(engine):
        try:
            return engine, cores.fork_core(engine, modules_to_import)
        # The code of vLLM, of a library or of the model has failed, with any exception.
        except Exception as error:
            if (fallback := choose_fallback_arguments(engine, error)) is None:
                raise
            fallback_arguments, description = fallback
            log.warning("%s: %s: %s", engine.model_name, description, error)
    # The second core is started outside the handler, so that the exception can't keep the first
    # one's memory alive.
    engine = _configure(fallback_arguments, start)
    with explain_start_errors(engine):
        return engine, cores.spawn_core(engine)


def _restart_core(engine: EngineArguments, start: Start) -> Core:
    for step in RESTART_STEPS:
        engine = step(engine)
    with cores.allow_environ_changes():
        return cores.spawn_core(_configure(engine, start))


def _configure(arguments: EngineArguments, start: Start) -> EngineArguments:
    with log_phase("weights"), explain_start_errors(arguments):
        arguments = configure_engine(arguments, start)
    for line in parser_hints(arguments.vllm_args):
        log.info("%s: %s", arguments.vllm_args.served_model_name[0], line)
    return arguments


@contextlib.contextmanager
def _event_loop_in_thread() -> Iterator[asyncio.AbstractEventLoop]:
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="engine", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _run_on_loop(
    loop: asyncio.AbstractEventLoop,
    function: Callable[[], Coroutine[Any, Any, None]],
    timeout: float | None = None,
) -> None:
    asyncio.run_coroutine_threadsafe(function(), loop).result(timeout)


async def warm_up(engine: InProcessEngine, arguments: EngineArguments) -> None:
    """Send first requests to an engine, to initialize everything before the first job.

    Models that generate get a raw and an OpenAI request, models that embed a raw one, others none.
    """
    if not {"generate", "embed"} & engine.model.tasks:
        # No single request is valid for all models that classify or score.
        return
    with checks.convert_first_request_refusals():
        generation = engine.generation
        example = example_input(generation.chat_renderer)
        prompt = await generation.render_job_prompt(RawJob.from_input(example))
        checks.check_token_ids(prompt["prompt_token_ids"], arguments.config.model_config)
        if "generate" not in engine.model.tasks:
            await generation.embed(prompt, "warm-up")
            return
        # An engine that compiles code compiles it for log probabilities at the first request for
        # them. This blocks the core for seconds.
        params = {"max_tokens": 1, "logprobs": 0}
        job = RawJob.from_input({**example, "sampling_params": params, "stream": True})
        async for _ in engine.generate(job, "warm-up"):
            pass
        path, body = "/v1/completions", example
        if messages := generation.chat_messages(job):
            path, body = "/v1/chat/completions", {"messages": messages}
        status, content = HTTPStatus.OK, b""
        async for part in engine.call(path, {**body, "max_tokens": 1, "stream": True}, "warm-up"):
            if isinstance(part, ResponseHead):
                status = HTTPStatus(part.status)
            elif status is not HTTPStatus.OK:
                content += part
        if status is not HTTPStatus.OK:
            text = content.decode(errors="replace")
            raise StartFailed(f"vLLM's own server answers {status} to a first request: {text}")
