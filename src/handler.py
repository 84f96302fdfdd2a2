"""The entry point, in production and locally: the ways to run, as a table."""

import asyncio
import contextlib
import logging
import math
import os
import signal
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from worker import children, doctor, failed_start, local, logs, masking, sweep
from worker.children.with_parent import end_with
from worker.command_line import read_command_line
from worker.engine import Engines, start
from worker.engine.start import Bootstrap, unreadable_volume
from worker.engine.start.repositories import Repositories
from worker.errors import StartFailed, WorkerError
from worker.failed_start import AT_ONCE, LONGEST_S, MOST_VALUES, QUIET_S, FailedStart
from worker.process import processor, stalls
from worker.process.concurrency import TRAININGS_AT_ONCE, jobs_at_once
from worker.process.phases import phase
from worker.serve.listener import Listener, Ports
from worker.settings import Settings
from worker.settings.environment import (
    EXPORTS,
    export,
    give_sdk_its_key,
    given_environ,
    port_around,
    process_environ,
    queue_around,
    take_secrets,
)
from worker.settings.mistakes import SettingsError
from worker.settings.sources import Given, gather

log = logging.getLogger("worker")

# How long a worker whose engine died waits until the errors of its jobs are posted.
FAREWELL_S = 10.0

# Imported while the engine starts, not before: pings wait for what is imported above.
APP = "worker.app"
SDK = (APP, "runpod", "job_loop.sdk")


@dataclass(frozen=True)
class Mode:
    """A way to run.

    Attributes:
        asked: returns by the command line, and the environment, whether to run so.
        run: does it, until it is over.
        imports: modules that it needs once its engine runs, imported while the core starts.
        refuse: answers callers with the reason why a start failed; None if there are none.
        streams: standard streams that are part of the log; any other is the answer.
    """

    asked: Callable[[Namespace], bool]
    run: Callable[["Call"], None]
    imports: tuple[str, ...] = ()
    refuse: Callable[["Call", FailedStart], None] | None = None
    streams: tuple[int, ...] = (1, 2)


@dataclass
class Call:
    """How this process was called: in which mode, with which settings, and its open ports."""

    mode: Mode
    command: Namespace
    given: Given
    listener: Listener | None = None

    @contextlib.contextmanager
    def engines(self) -> Iterator[tuple[Engines, Settings]]:
        """Start what the mode needs; see ``started``."""
        stalls.begin(self.given.values)
        with started(self.given, self.mode.imports, train=self.command.train) as running:
            yield running


def main() -> NoReturn:
    """Run in the first mode of the table that is asked for, and end the process."""
    command = read_command_line()
    # Before there are children, or anything is logged.
    masking.hide(take_secrets())
    masking.mask_output()
    mode = next(mode for mode in MODES if mode.asked(command))
    # Read here, since mistakes in the settings are logged, too.
    logs.set_up(process_environ().get("LOG_FORMAT", "").strip(), mode.streams)
    for name in ("worker", "job_loop"):
        logging.getLogger(name).setLevel(logging.INFO)
    # Until the SDK sets its own handlers.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: leave(128 + number))
    call = Call(mode, command, gather(given_environ()))
    try:
        mode.run(call)
    except WorkerError as error:
        stalls.end()
        logs.write_failure(error.message)
        if isinstance(error, StartFailed):
            refuse(call, error)
        if call.listener:
            # Closes the ports at once: nobody is to wait for this worker.
            call.listener.close()
        leave(1)
    leave(0)


def refuse(call: Call, error: StartFailed) -> None:
    """Answer callers with the reason of a failed start, unless it is for the operator alone."""
    # Nobody can ask where the ports could not be opened.
    ports_failed = call.mode.refuse is refuse_http and call.listener is None
    if call.mode.refuse and not ports_failed and failed_start.answers(error, call.given.values):
        # The process that holds the ports hands them over, and answers whom it has accepted.
        children.end_all(spare=[call.listener.holder] if call.listener else [])
        log.info("whoever asks is answered so for a while (%s=0: nobody is)", failed_start.SETTING)
        call.mode.refuse(call, FailedStart(error))


def check(call: Call) -> None:
    """Print whether the worker would start."""
    # Ends at once, even if a request to the hub is unanswered.
    leave(doctor.main(call.given, call.command.gpu, call.command.prices))


def prefetch(call: Call) -> None:
    """Download what the settings name in its newest state; needs no GPU.

    Raises:
        SettingsError: the settings don't say what to download, or there is no directory at the
            BASE_PATH that they name.
        StartFailed: something can't be found or downloaded.
    """
    bootstrap = Bootstrap.of(call.given)
    mistakes = [*bootstrap.mistakes, *unreadable_volume(call.given)]
    if mistakes:
        raise SettingsError(mistakes)
    for found in Repositories(call.given, newest=True).prefetch():
        log.info("found: %s", found)


@contextlib.contextmanager
def started(
    given: Given, imports: tuple[str, ...] = (), *, train: bool = False
) -> Iterator[tuple[Engines, Settings]]:
    """Start the engines, and import modules meanwhile; stop them on leaving.

    With ``train`` start no engine, but what trains adapters for its model.

    Raises:
        SettingsError: all mistakes in the settings.
        StartFailed: vLLM could not start.
    """
    ready = start.ready(given, offline=True)
    for warning in ready.warnings:
        log.warning(warning)
    # It imports vLLM, which reads variables that were just written.
    from worker.engine.start import launch  # noqa: PLC0415 - see above

    begin = launch.without_engine if train else launch.launched
    with begin(ready, imports) as engines:
        stalls.end()
        yield engines, ready.settings


def answer_one(call: Call) -> None:
    """Answer one job on standard output; with ``--train`` alone, go on with unfinished trainings.

    Raises:
        WorkerError: the worker does not start, or there is no job to answer.
    """
    left = call.command.train and call.command.test_input is None
    job = None if left else local.read_job(call.command.test_input)
    with call.engines() as (engines, settings):
        from worker.app import Worker  # noqa: PLC0415 - see APP

        worker = Worker(engines, settings, seconds=math.inf)
        leave(asyncio.run(local.answer(worker, job) if job else local.go_on(worker)))


def serve_http(call: Call) -> None:
    """Answer HTTP requests until a signal, or until the engine dies.

    Raises:
        WorkerError: the ports can't be opened, or the worker does not start.
    """
    # Before anything is loaded: load balancers ask from the first second on.
    host, ports = call.command.host, Ports.of(call.command.port, process_environ())
    listener = call.listener = Listener(host, ports)
    with call.engines() as (engines, settings):
        # Only this way to run needs it.
        from worker.serve import running  # noqa: PLC0415 - see above

        sweep.begin(settings)
        watch = partial(leave_after_death, engines.died)
        running.serve(engines, settings, host, listener.take(), leave, watch)


def refuse_http(call: Call, instead: FailedStart) -> None:
    """Answer HTTP requests for a while with the reason why the worker does not start."""
    from worker.serve import running  # noqa: PLC0415 - only this way to run needs it

    assert call.listener  # for the type checker: see refuse
    try:
        sockets = call.listener.take()
    except StartFailed as lost:
        logs.write_failure(lost.message)
    else:
        running.refuse(instead.error, call.given.values, call.command.host, sockets, leave)


def serve_jobs(call: Call) -> None:
    """Take jobs from the platform until it stops the worker, or the engine dies.

    With ``--rp_serve_api`` the SDK serves its own test API instead.

    Raises:
        WorkerError: the worker does not start.
    """
    processor.name_it_quickly()
    with call.engines() as (engines, settings):
        sweep.begin(settings)
        serve(engines, settings, test_api=call.command.rp_serve_api)
        # Here, where the engine is not stopped first.
        leave(0)


def serve(engines: Engines, settings: Settings, *, test_api: bool = False) -> None:
    """Let the SDK run the worker, with the worker's own job loop where that fits the SDK."""
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
    report, send = wire.report if wire else None, sending.start if sending else None
    worker = Worker(engines, settings, report, start=send)

    runpod.serverless.register_fitness_check(local.check_of(worker, engines))
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


def refuse_jobs(_: Call, instead: FailedStart) -> None:
    """Answer the platform's jobs for a while with the reason why the worker does not start."""
    # Without a model's name nobody has written them.
    export(EXPORTS)
    give_sdk_its_key()
    from job_loop import Limits, sdk  # noqa: PLC0415 - as in serve

    limits = Limits(AT_ONCE, FAREWELL_S, MOST_VALUES, QUIET_S, LONGEST_S)
    sdk.answer_for_a_while(instead, limits)


def leave_after_death(died: Future[None], jobs_left: Callable[[], int]) -> None:
    """Wait for an engine's death, and exit once the errors of its jobs are posted."""
    died.result()
    deadline = time.monotonic() + FAREWELL_S
    while jobs_left() and time.monotonic() < deadline:
        time.sleep(0.05)
    log.critical("the engine died: this worker exits, so that the platform replaces it")
    leave(1)


def leave(status: int) -> NoReturn:
    """End the process and its children at once, whatever their threads are doing.

    An orderly end would stop the engine first, which takes vLLM a second or more and saves nothing;
    after a signal the platform does not wait for it.
    """
    children.end_all()
    logs.flush()
    os._exit(status)


# The ways to run; the first that is asked for counts.
MODES = (
    Mode(lambda command: command.check, check, streams=(2,)),
    Mode(lambda command: command.prefetch, prefetch),
    Mode(lambda command: command.rp_serve_api, serve_jobs, SDK),
    Mode(lambda command: command.serve, serve_http, (APP, "worker.serve.running"), refuse_http),
    Mode(lambda _: queue_around(), serve_jobs, SDK, refuse_jobs),
    # A port of the SDK's in place of a queue: nobody waits for it before it is open.
    Mode(lambda _: port_around(), serve_jobs, SDK),
    Mode(lambda _: True, answer_one, (APP,), streams=(2,)),
)


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":
    # A core, or a part of one, that multiprocessing starts from nothing.
    end_with(os.getppid())
    stalls.end_on_signal()
