"""The entry point, in production and locally: settings, engine, worker, SDK."""

import argparse
import asyncio
import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import FrameType
from typing import Any, NoReturn

import psutil

from worker import doctor, local, logs, masking, start, sweep
from worker.app import Worker
from worker.batches.sending import Sending
from worker.concurrency import jobs_at_once
from worker.engine import Engines, Model
from worker.errors import SettingsError, WorkerError
from worker.phases import phase
from worker.record import JobRecord
from worker.settings import Settings
from worker.settings.environment import (
    give_sdk_its_key,
    given_environ,
    log_format,
    platform_around,
    process_environ,
    queue_around,
    take_secrets,
)
from worker.settings.sources import gather
from worker.start.bootstrap import Bootstrap
from worker.start.repositories import Repositories
from worker.store import fetching

log = logging.getLogger("worker")

# How long a worker whose engine died waits until the errors of its jobs are posted.
FAREWELL_S = 10.0


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
    try:
        if command.check:
            # At once, even if a request to the hub is unanswered.
            leave(doctor.main())
        if command.prefetch:
            prefetch()
            leave(0)
        if command.serve:
            with started("worker.serve") as (engines, settings):
                sweep.begin(settings)
                serve_http(engines, settings, command.host, command.port)
                leave(0)
        if command.rp_serve_api or platform_around():
            with started("runpod", "job_loop.sdk") as (engines, settings):
                sweep.begin(settings)
                serve(engines, settings, test_api=command.rp_serve_api)
                leave(0)
        job = local.read_job(command.test_input)
        with started() as (engines, settings):
            leave(asyncio.run(local.answer(Worker(engines, settings), job)))
    except WorkerError as error:
        logs.write_failure(error.message)
        return 1


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
    fetching.end_all()
    for child in multiprocessing.active_children():
        child.kill()
    logs.flush()
    os._exit(status)


def read_command_line() -> Namespace:
    """Read the worker's own arguments; the SDK reads the others."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--test_input", metavar="JSON", help="answer this job and exit")
    parser.add_argument("--rp_serve_api", action="store_true", help="serve the SDK's own test API")
    parser.add_argument("--check", action="store_true", help="say whether the worker would start")
    parser.add_argument("--prefetch", action="store_true", help="download the model, and no more")
    parser.add_argument("--serve", action="store_true", help="serve the OpenAI API over HTTP")
    # Other addresses (0.0.0.0 in a pod) are reachable from elsewhere, and may need a key.
    parser.add_argument("--host", default="127.0.0.1", help="where --serve listens")
    parser.add_argument("--port", default=8000, type=int, help="where --serve listens; 0: any")
    return parser.parse_known_args()[0]


def prefetch() -> None:
    """Download what the settings name in its newest state; needs no GPU.

    Raises:
        SettingsError: the settings don't say what to download, or where to.
        StartFailed: something can't be found or downloaded.
    """
    bootstrap = Bootstrap.of(gather(given_environ()))
    if bootstrap.mistakes:
        raise SettingsError([*bootstrap.mistakes])
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
    from worker.engine import launch  # noqa: PLC0415 - see above
    from worker.engine.requests import media  # noqa: PLC0415 - likewise

    arguments = [media.without_fetcher(engine) for engine in ready.engines]
    with launch.launched(ready.settings, arguments, also_import, ready.compile_cache) as engines:
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

    own_loop = queue_around() and not test_api and sdk.fits()
    wire = Wire(sdk.urls(), sdk.session) if own_loop else None
    # The SDK's test API, and its own loop, have no way to report progress.
    sending = Sending.of(settings)
    report, start = wire.report if wire else None, sending.start if sending else None
    worker = Worker(engines, settings, report, start=start)

    async def engine_answers() -> None:
        job = fitness_job(engines.main.model)
        # With a record of its own, which is not written: it is no job of a caller.
        async for chunk in worker.handle(job, JobRecord(job["id"])):
            if "error" in chunk:
                raise RuntimeError(chunk["error"])

    runpod.serverless.register_fitness_check(engine_answers)
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


def serve_http(engines: Engines, settings: Settings, host: str, port: int) -> None:
    """Answer HTTP requests until a signal, or until the engine dies."""
    # Only this way to run needs it.
    from worker.serve import server  # noqa: PLC0415 - see above

    running = server(engines, settings, host, port)
    for number in (signal.SIGTERM, signal.SIGINT):
        # The server's own handler would wait for running requests.
        signal.signal(number, lambda *_: leave(0))

    def requests_left() -> int:
        return len(running.server_state.tasks)

    threading.Thread(
        target=leave_after_death, args=(engines.died, requests_left), daemon=True
    ).start()
    running.run()


def fitness_job(model: Model) -> dict[str, Any]:
    """Return a job that asks for a token; for a model that generates none, one for its health."""
    # A token's id in place of text, because there may be no tokenizer.
    token = {"prompt": [0], "sampling_params": {"max_tokens": 1}}
    return {
        "id": "fitness-check",
        "input": token if "generate" in model.tasks else {"route": "/health"},
    }


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
