"""The entry point, in production and locally: settings, engine, worker, SDK."""

import asyncio
import contextlib
import logging
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from types import FrameType
from typing import NoReturn

import psutil

from worker import doctor, fitness, local, logs, masking, processor, stalls, sweep
from worker import failed_start as failed
from worker.command_line import read_command_line
from worker.concurrency import TRAININGS_AT_ONCE, jobs_at_once
from worker.engine import Engines, start
from worker.engine.start import ahead
from worker.engine.start.bootstrap import Bootstrap
from worker.engine.start.repositories import Repositories
from worker.engine.start.volume import unreadable_volume
from worker.errors import StartFailed, WorkerError
from worker.fine_tunes import child
from worker.phases import phase
from worker.serve.listener import Listener, Ports
from worker.settings import Settings
from worker.settings.environment import (
    EXPORTS,
    export,
    give_sdk_its_key,
    given_environ,
    log_format,
    platform_around,
    process_environ,
    queue_around,
    take_secrets,
)
from worker.settings.mistakes import SettingsError
from worker.settings.sources import gather
from worker.store import fetching

log = logging.getLogger("worker")

# How long a worker whose engine died waits until the errors of its jobs are posted.
FAREWELL_S = 10.0

# Imported while the engine starts, not before: pings wait for what stands above.
APP = "worker.app"


def main() -> int:
    """Start the worker and run it until it is stopped; return the exit status of a failed start."""
    command = read_command_line()
    # Before there are children, or anything is logged.
    masking.hide(take_secrets())
    masking.mask_output()
    set_up_log(command)
    # Until the SDK sets its own handlers.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave_on_signal)
    listener = None
    try:
        if serves_http(command):
            # Before anything is loaded: load balancers ask from the first second on.
            listener = Listener(command.host, Ports.of(command.port, given_environ()))
        run(command, listener)
    except WorkerError as error:
        stalls.end()
        logs.write_failure(error.message)
        # Who serves HTTP has no part in the queue, even if the ports can't be opened.
        asked = listener or (queue_around() and not command.serve and not no_worker(command))
        values = gather(given_environ()).values
        if asked and isinstance(error, StartFailed) and failed.answers(error, values):
            tell(command, error, listener)
        if listener:
            listener.close()
        return 1


def no_worker(command: Namespace) -> bool:
    """Return whether something else is asked for than to answer callers."""
    return bool(command.check or command.prefetch or command.rp_serve_api)


def serves_http(command: Namespace) -> bool:
    """Return whether callers are answered over HTTP."""
    return command.serve and not no_worker(command)


def run(command: Namespace, listener: Listener | None) -> NoReturn:
    """Do what the command line asks for, and end the process.

    Raises:
        WorkerError: the worker does not start, or there is no job to answer.
    """
    if command.check:
        # At once, even if a request to the hub is unanswered.
        leave(doctor.main(command.gpu, command.prices))
    if command.prefetch:
        prefetch()
        leave(0)
    stalls.begin(gather(given_environ()).values)
    begun = ready_to_train if command.train else started
    if listener:
        with begun(APP, "worker.serve.running") as (engines, settings):
            sweep.begin(settings)
            serve_http(engines, settings, command.host, listener)
            leave(0)
    if command.rp_serve_api or platform_around():
        processor.name_it_quickly()
        with begun(APP, "runpod", "job_loop.sdk") as (engines, settings):
            sweep.begin(settings)
            serve(engines, settings, test_api=command.rp_serve_api)
            leave(0)
    left = command.train and command.test_input is None
    job = None if left else local.read_job(command.test_input)
    with begun(APP) as (engines, settings):
        from worker.app import Worker  # noqa: PLC0415 - see APP

        worker = Worker(engines, settings, seconds=math.inf)
        leave(asyncio.run(local.answer(worker, job) if job else local.go_on(worker)))


def tell(command: Namespace, error: StartFailed, listener: Listener | None) -> None:
    """Answer callers with the reason why the worker does not start, then end the process."""
    end_children()
    instead = failed.FailedStart(error)
    log.info("whoever asks is answered so for a while (%s=0: nobody is)", failed.SETTING)
    if listener:
        from worker.serve import running  # noqa: PLC0415 - only this way to run needs it

        values = gather(given_environ()).values
        try:
            sockets = listener.take()
        except StartFailed as lost:
            logs.write_failure(lost.message)
        else:
            running.refuse(instead.error, values, command.host, sockets, leave)
    else:
        # Without a model's name nobody has written them.
        export(EXPORTS)
        give_sdk_its_key()
        from job_loop import Limits, sdk  # noqa: PLC0415 - as in serve

        limits = Limits(
            failed.AT_ONCE, FAREWELL_S, failed.MOST_VALUES, failed.QUIET_S, failed.LONGEST_S
        )
        sdk.answer_for_a_while(instead, limits)
    leave(1)


def set_up_log(command: Namespace) -> None:
    """Set up the log in its format; standard output is no part of it where it has an answer."""
    serves = command.prefetch or command.serve or command.rp_serve_api or platform_around()
    streams = (1, 2) if serves and not command.check else (2,)
    logs.set_up(log_format(), streams, process_environ())
    for name in ("worker", "job_loop"):
        logging.getLogger(name).setLevel(logging.INFO)


def leave_on_signal(number: int, _: FrameType | None) -> None:
    """End a start or a local run at once: the platform does not wait for an engine to stop."""
    fetching.end_all()
    child.end_all()
    # A core that was forked a moment ago is not among multiprocessing's children yet.
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if not logs.is_reader(process.pid):
                process.kill()
    leave(128 + number)


def leave(status: int) -> NoReturn:
    """End the process and its children at once, whatever their threads are doing.

    An orderly end would stop the engine first, which takes vLLM a second or more and saves nothing.
    """
    end_children()
    logs.flush()
    os._exit(status)


def end_children() -> None:
    """End downloads, what reads ahead, trainings and cores."""
    fetching.end_all()
    ahead.end_all()
    child.end_all()
    for process in multiprocessing.active_children():
        process.kill()


def prefetch() -> None:
    """Download what the settings name in its newest state; needs no GPU.

    Raises:
        SettingsError: the settings don't say what to download, or there is no directory at the
            BASE_PATH that they name.
        StartFailed: something can't be found or downloaded.
    """
    bootstrap = Bootstrap.of(gather(given_environ()))
    mistakes = [*bootstrap.mistakes, *unreadable_volume(bootstrap.given)]
    if mistakes:
        raise SettingsError(mistakes)
    for found in Repositories(bootstrap, newest=True).prefetch():
        log.info("found: %s", found)


@contextlib.contextmanager
def started(*also_import: str) -> Iterator[tuple[Engines, Settings]]:
    """Read the settings and start the engines; stop them on leaving.

    Args:
        also_import: modules to import while the engine starts.

    Raises:
        SettingsError: all mistakes in the settings.
        StartFailed: vLLM could not start.
    """
    ready = start.ready(offline=True)
    for warning in ready.warnings:
        log.warning(warning)
    # It imports vLLM, which reads variables that were just written.
    from worker.engine.run.requests import media  # noqa: PLC0415 - likewise
    from worker.engine.start import launch  # noqa: PLC0415 - see above

    arguments = [media.without_fetcher(engine) for engine in ready.engines]
    with launch.launched(ready.settings, arguments, also_import, ready.compile_cache) as engines:
        stalls.end()
        ahead.end_all()
        yield engines, ready.settings


@contextlib.contextmanager
def ready_to_train(*_: str) -> Iterator[tuple[Engines, Settings]]:
    """Read the settings, and find the model that adapters are trained for; as ``started``."""
    ready = start.ready(offline=True)
    for warning in ready.warnings:
        log.warning(warning)
    from worker.engine.start import launch  # noqa: PLC0415 - as above

    with launch.without_engine(ready.settings, ready.arguments) as engines:
        stalls.end()
        ahead.end_all()
        yield engines, ready.settings


def serve(engines: Engines, settings: Settings, *, test_api: bool = False) -> None:
    """Take jobs from the platform until it stops the worker, or the engine dies.

    With ``test_api`` the SDK serves its own test API instead.
    """
    with phase("sdk"):
        give_sdk_its_key()
        # The SDK reads the environment when it is imported. Other ways to run do without it.
        import runpod  # noqa: PLC0415 - see above

        from job_loop import JobLoop, Limits, Wire, sdk  # noqa: PLC0415 - likewise

    from worker.app import Worker  # noqa: PLC0415 - see APP
    from worker.sending import Sending  # noqa: PLC0415 - likewise

    own_loop = queue_around() and not test_api and sdk.fits()
    wire = Wire(sdk.urls(), sdk.session) if own_loop else None
    # The SDK's test API, and its own loop, have no way to report progress.
    sending = Sending.of(settings)
    report, start = wire.report if wire else None, sending.start if sending else None
    worker = Worker(engines, settings, report, start=start)

    runpod.serverless.register_fitness_check(fitness.check_of(worker, engines))
    jobs = TRAININGS_AT_ONCE
    if engines.serve:
        jobs = jobs_at_once(settings.max_concurrency, engines.main.slots)
    if wire:
        limits = Limits(jobs, settings.shutdown_grace_s, settings.max_input_values)
        sdk.install(JobLoop(worker, wire, limits, engines.died, sdk.in_progress()))
    else:
        leaving = (engines.died, sdk.jobs_in_progress)
        threading.Thread(target=leave_after_death, args=leaving, daemon=True).start()
    runpod.serverless.start(
        {
            "handler": worker.handle,
            "return_aggregate_stream": True,
            # A constant: the SDK changes its concurrency only while no job is running.
            "concurrency_modifier": lambda _: jobs,
        }
    )
    if engines.died.done():
        leave_after_death(engines.died, lambda: 0)


def serve_http(engines: Engines, settings: Settings, host: str, listener: Listener) -> None:
    """Answer HTTP requests until a signal, or until the engine dies."""
    # Only this way to run needs it.
    from worker.serve import running  # noqa: PLC0415 - see above

    watch = partial(leave_after_death, engines.died)
    running.serve(engines, settings, host, listener.take(), leave, watch)


def leave_after_death(died: Future[None], jobs_left: Callable[[], int]) -> None:
    """Wait for an engine's death, and exit once the errors of its jobs are posted."""
    died.result()
    deadline = time.monotonic() + FAREWELL_S
    while jobs_left() and time.monotonic() < deadline:
        time.sleep(0.05)
    log.critical("the engine died: this worker exits, so that the platform replaces it")
    leave(1)


if __name__ == "__main__":
    sys.exit(main())
elif __name__ == "__mp_main__":
    # A core, or a part of one, that multiprocessing starts from nothing.
    stalls.end_on_signal()
