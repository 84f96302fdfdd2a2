"""The entry point, in production and locally: a table of modes and a function for each mode."""

import asyncio
import logging
import math
import os
import signal
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from worker import children, doctor, failed_start, local, logs, masking, sweep
from worker.children.with_parent import exit_with_parent
from worker.command_line import read_command_line
from worker.engine import Engines
from worker.engine.start import Start, check_base_path
from worker.engine.start.artifacts import EngineArtifacts
from worker.errors import MachineUnfit, StartFailed, WorkerError
from worker.failed_start import (
    CONCURRENCY,
    IDLE_TIMEOUT_S,
    MAX_LIFETIME_S,
    FailedStartHandler,
)
from worker.limits.inputs import MAX_VALUES
from worker.metrics import push
from worker.process.concurrency import MAX_CONCURRENT_TRAININGS, max_jobs_from_queue
from worker.process.lifetime import (
    call_at_exit,
    call_exit_functions,
    exiting,
    log_phase,
    skip_processor_benchmark,
)
from worker.receipts import vllm_version
from worker.serve.listener import Ports, StartupListener, check_console_access
from worker.settings import Settings
from worker.settings.environment import (
    LIBRARY_DEFAULTS,
    environ_with_secrets,
    has_job_queue,
    has_realtime_port,
    pop_secrets,
    process_environ,
    restore_sdk_key,
    set_unset_variables,
)
from worker.settings.mistakes import SettingsError
from worker.settings.sources import RawSettings, gather_settings

log = logging.getLogger("worker")

# Maximum seconds for posting the jobs' errors after an engine died or the startup failed.
ENGINE_DEATH_GRACE_S = 10.0

# Modules to import while the engine starts. Importing them here would delay answers to pings.
APP_MODULE = "worker.app"
SDK_MODULES = (APP_MODULE, "runpod.serverless", "job_loop.sdk")
HTTP_MODULES = (APP_MODULE, "worker.serve.http_server")


@dataclass(frozen=True)
class Mode:
    """A mode in which this program can run.

    Attributes:
        is_selected: Returns whether the command line or the environment selects this mode.
        run: Runs the mode until it is finished; raises WorkerError if the worker doesn't start.
        modules: Modules to import while the engine starts; the mode needs them afterwards.
        serve_failure: Answers callers with the reason of a failed startup; None if no caller waits.
        log_streams: File descriptors of the streams for logs; without 1, stdout has only results.
    """

    is_selected: Callable[[Namespace], bool]
    run: Callable[["ProgramRun"], None]
    modules: tuple[str, ...] = ()
    serve_failure: Callable[["ProgramRun", FailedStartHandler], None] | None = None
    log_streams: tuple[int, ...] = (1, 2)


@dataclass
class ProgramRun:
    """One run of this program: its mode, command line, settings and open ports."""

    mode: Mode
    command: Namespace
    raw_settings: RawSettings
    listener: StartupListener | None = None

    def start_engines(self) -> AbstractContextManager[tuple[Engines, Settings]]:
        """Start the engines for this mode."""
        return start_engines(self.raw_settings, self.mode.modules, train=self.command.train)


def main() -> NoReturn:
    """Run the first selected mode of the table, then exit."""
    command = read_command_line()
    # Mask secrets before child processes start and before anything is logged.
    masking.add_secrets(pop_secrets())
    masking.add_url_credentials(process_environ().values())
    masking.mask_output()
    mode = next(mode for mode in MODES if mode.is_selected(command))
    # LOG_FORMAT is read before the other settings, whose mistakes are logged in this format.
    logs.set_up(process_environ().get("LOG_FORMAT", "").strip(), mode.log_streams)
    for name in ("worker", "job_loop"):
        logging.getLogger(name).setLevel(logging.INFO)
    # These handlers are used until the SDK, the job loop or the HTTP server sets its own.
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda number, _: exit_process(128 + number))
    run = ProgramRun(mode, command, gather_settings(environ_with_secrets()))
    try:
        mode.run(run)
    except WorkerError as error:
        fail(run, error)
    # A defect would otherwise start the worker again and again, while callers wait.
    except Exception as defect:
        log.exception("the worker has a defect")
        fail(run, MachineUnfit(f"The worker has a defect: {type(defect).__name__}"))
    exit_process(0)


def fail(run: ProgramRun, error: WorkerError) -> NoReturn:
    """Log why the program fails, answer callers if the start has failed for all, and exit."""
    logs.write_failure(error.message)
    if isinstance(error, StartFailed):
        answer_failed_start(run, error)
    if run.listener:
        # Close the ports immediately so that no caller waits for this worker.
        run.listener.close()
    exit_process(1)


def answer_failed_start(run: ProgramRun, error: StartFailed) -> None:
    """Answer callers with the error, if they should get it and can reach this worker."""
    serve_failure, listener = run.mode.serve_failure, run.listener
    # No caller can reach this worker if its ports could not be opened.
    ports_failed = serve_failure is serve_http_failure and listener is None
    if serve_failure is None or ports_failed:
        return
    if failed_start.should_answer_callers(error, run.raw_settings.values):
        # Spare the process that holds the ports: it passes them on, and answers open connections.
        children.stop_descendants(spared_children=[listener.child] if listener else [])
        minutes = failed_start.MAX_LIFETIME_S / 60
        log.info(
            "callers get this error for up to %g minutes (%s=0: exit)",
            minutes,
            failed_start.SETTING,
        )
        serve_failure(run, FailedStartHandler(error))


def check_startup(run: ProgramRun) -> None:
    """Print whether the worker would start."""
    # Exit immediately, even if a request to the Hugging Face hub has no response yet.
    command = run.command
    exit_process(doctor.main(run.raw_settings, command.gpu, command.prices))


def prefetch_repositories(run: ProgramRun) -> None:
    """Download the newest versions of the repositories in the settings. This needs no GPU."""
    mistakes = [*Start.read(run.raw_settings).mistakes, *check_base_path(run.raw_settings)]
    if mistakes:
        raise SettingsError(mistakes)
    artifacts = EngineArtifacts(run.raw_settings, check_newest=True)
    for repository in artifacts.fetch_artifacts_in_settings():
        log.info("found: %s", repository)


@contextmanager
def start_engines(
    raw_settings: RawSettings, modules: tuple[str, ...] = (), *, train: bool = False
) -> Iterator[tuple[Engines, Settings]]:
    """Start the engines and import modules in the meantime; stop the engines after the block.

    With ``train``, the worker only trains adapters, and starts no engine.
    """
    start = Start.read(raw_settings)
    start.prepare(offline=True)
    for warning in start.warnings:
        log.warning(warning)
    # This module imports vLLM, which reads the environment variables that were set just now.
    from worker.engine.start import launch  # noqa: PLC0415 - see above

    launch_all = launch.launch_without_engine if train else launch.launch_engines
    with launch_all(start, modules) as engines:
        failed_start.forget_failures(raw_settings.values)
        yield engines, start.settings


def answer_job_or_resume_trainings(run: ProgramRun) -> None:
    """Answer one job on standard output; with only ``--train``, resume unfinished trainings."""
    resumes_trainings = run.command.train and run.command.test_input is None
    job = None if resumes_trainings else local.read_test_job(run.command.test_input)
    with run.start_engines() as (engines, settings):
        from worker.app import Worker  # noqa: PLC0415 - see APP_MODULE

        worker = Worker(engines, settings, timeout_s=math.inf)
        work = local.run_and_print(worker, job) if job else local.run_unfinished_work(worker)
        exit_process(asyncio.run(work))


def serve_http(run: ProgramRun) -> None:
    """Answer HTTP requests until a signal arrives or an engine dies."""
    host, console = run.command.host, run.command.console
    if console:
        check_console_access(host, run.raw_settings.values)
    # The ports open before anything is loaded: load balancers send pings from the first second.
    ports = Ports.choose(run.command.port, process_environ())
    listener = run.listener = StartupListener(host, ports)
    with run.start_engines() as (engines, settings):
        from worker.serve import http_server  # noqa: PLC0415 - only this mode needs it

        start_background_threads(engines, settings)
        watch_engines = partial(exit_after_engine_death, engines.died)
        sockets = listener.take_sockets()
        numbers = [one.getsockname()[1] for one in sockets]
        server = http_server.make_server(engines, settings, host, *numbers, console=console)
        http_server.serve(server, sockets, exit_process, watch_engines)


def start_background_threads(engines: Engines, settings: Settings) -> None:
    sweep.start_sweeping(settings)
    if pusher := push.start_pushing(settings, engines, vllm_version()):
        call_at_exit(pusher.stop)


def serve_http_failure(run: ProgramRun, failure: FailedStartHandler) -> None:
    """Answer HTTP requests temporarily with the reason why the worker doesn't start."""
    from worker.serve import http_server  # noqa: PLC0415 - only this mode needs it

    assert run.listener  # for the type checker; answer_failed_start checks it
    try:
        sockets = run.listener.take_sockets()
    except StartFailed as error:
        logs.write_failure(error.message)
    else:
        host, values = run.command.host, run.raw_settings.values
        http_server.serve_failure(failure.error, values, host, sockets, exit_process)


def serve_jobs(run: ProgramRun) -> None:
    """Take jobs from the platform, or serve the SDK's API, until a signal or an engine's death."""
    skip_processor_benchmark()
    with run.start_engines() as (engines, settings):
        start_background_threads(engines, settings)
        if has_job_queue() and (note := doctor.missing_key_note(settings)):
            log.info(note)
        run_sdk(engines, settings, test_api=run.command.rp_serve_api)
        # Exit within the block, so that the engine is not stopped first.
        exit_process(0)


def run_sdk(engines: Engines, settings: Settings, *, test_api: bool = False) -> None:
    """Let the SDK run the worker; replace the SDK's own job loop if the SDK is compatible."""
    with log_phase("sdk"):
        restore_sdk_key()
        # The SDK reads the environment when it is imported. The other modes don't need the SDK.
        from runpod import serverless  # noqa: PLC0415 - see above

        from job_loop import JobLoop, LoopLimits, PlatformClient, sdk  # noqa: PLC0415 - see above

    from worker.app import Worker  # noqa: PLC0415 - see APP_MODULE
    from worker.background import BackgroundWork  # noqa: PLC0415 - see APP_MODULE
    from worker.job_sender import JobSender  # noqa: PLC0415 - only this mode needs it

    uses_own_loop = has_job_queue() and not test_api and sdk.is_compatible()
    client = PlatformClient(sdk.platform_urls(), sdk.create_session) if uses_own_loop else None
    # The SDK's test API and its own job loop can't report progress.
    sender = JobSender.from_settings(settings)
    report, send = client.post_progress if client else None, sender.send_job if sender else None
    worker = Worker(engines, settings, report, start_work=send)

    serverless.register_fitness_check(local.make_fitness_check(worker, engines))
    jobs = MAX_CONCURRENT_TRAININGS
    if engines.has_engine:
        jobs = max_jobs_from_queue(settings.max_concurrency, engines.main_engine.slots)
    if client:
        limits = LoopLimits(jobs, settings.shutdown_grace_s, MAX_VALUES)
        background = BackgroundWork(worker, send)
        in_progress = sdk.reset_jobs_in_progress()
        loop = JobLoop(worker, client, limits, engines.died, in_progress, background)
        sdk.replace_scaler(loop)
    else:
        args = (engines.died, sdk.count_jobs_in_progress)
        threading.Thread(target=exit_after_engine_death, args=args, daemon=True).start()
    serverless.start(
        {
            "handler": worker.handle,
            "return_aggregate_stream": True,
            # A constant, because the SDK changes its concurrency only while no job is running.
            "concurrency_modifier": lambda _: jobs,
        }
    )
    if engines.died.done():
        exit_after_engine_death(engines.died, lambda: 0)


def serve_jobs_failure(_: ProgramRun, failure: FailedStartHandler) -> None:
    """Answer the platform's jobs temporarily with the reason why the worker doesn't start."""
    # The startup may have failed before it set the libraries' variables.
    set_unset_variables(LIBRARY_DEFAULTS)
    restore_sdk_key()
    from job_loop import LoopLimits, sdk  # noqa: PLC0415 - the SDK reads variables on import

    limits = LoopLimits(
        CONCURRENCY, ENGINE_DEATH_GRACE_S, MAX_VALUES, IDLE_TIMEOUT_S, MAX_LIFETIME_S
    )
    sdk.serve_failed_start(failure, limits)


def exit_after_engine_death(engine_death: Future[None], count_jobs: Callable[[], int]) -> None:
    """Wait until an engine dies, then exit once its jobs' errors are posted, or after a timeout."""
    engine_death.result()
    deadline = time.monotonic() + ENGINE_DEATH_GRACE_S
    while count_jobs() and time.monotonic() < deadline:
        time.sleep(0.05)
    log.critical("the engine died: this worker exits, so that the platform replaces it")
    exit_process(1)


def exit_process(status: int) -> NoReturn:
    """Stop all children, then exit immediately, whatever the threads of this process are doing.

    An orderly exit would stop the engine first, and the platform doesn't wait for that.
    """
    exiting.set()
    call_exit_functions()
    children.stop_descendants()
    logs.flush()
    os._exit(status)


# All modes; the first selected one runs.
MODES = (
    Mode(lambda command: command.check, check_startup, log_streams=(2,)),
    Mode(lambda command: command.prefetch, prefetch_repositories),
    Mode(lambda command: command.rp_serve_api, serve_jobs, SDK_MODULES),
    Mode(lambda command: command.serve, serve_http, HTTP_MODULES, serve_http_failure),
    Mode(lambda _: has_job_queue(), serve_jobs, SDK_MODULES, serve_jobs_failure),
    # The SDK opens its port only after the startup, so no caller waits if the startup fails.
    Mode(lambda _: has_realtime_port(), serve_jobs, SDK_MODULES),
    Mode(lambda _: True, answer_job_or_resume_trainings, (APP_MODULE,), log_streams=(2,)),
)


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":
    # This is a process of an engine, which multiprocessing started with a new interpreter.
    exit_with_parent(os.getppid())
