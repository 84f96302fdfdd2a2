"""SIGKILL of a worker's main process at random moments; none of its other processes survives.

The worker logs in JSON. It has an engine core and a process that tries to compile grammars. Every
other worker downloads its model at startup. Each trains while it runs and stops after a SIGTERM.
"""

import asyncio
import random
import signal
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from itertools import cycle
from pathlib import Path

from support.hub.downloads import NAME, hub_with
from support.hub.server import Hub
from support.processes.background import BackgroundProcess, start_command, wait_until
from support.processes.commands import DEMO, HANDLER, HOME
from support.processes.kills import (
    TRAINER,
    ProcessTree,
    begin_training,
    complete_with_grammar,
    kill_worker,
    training_environ,
    wait_until_exited,
)
from support.processes.servers import ServerProcess

from chaos.report import Report

# With this rate, the download takes as long as the import.
DOWNLOAD_BYTES_PER_S = 1_000_000
# Maximum seconds from the beginning of the training, and from the SIGTERM, to the kill.
MAX_RUN_S, MAX_STOP_S = 5.0, 0.2
# Seconds within which all processes must exit, and after which even a busy machine is no excuse.
EXIT_GOAL_S, EXIT_TIMEOUT_S = 1.0, 20.0


class Moment(StrEnum):
    """The activity of a worker when it is killed."""

    STARTING = "start"
    RUNNING = "run"
    STOPPING = "end"


@contextmanager
def start_worker(hub: Hub, number: int, logs: Path) -> Iterator[BackgroundProcess]:
    """Start a worker on its own volume; workers with an even number download their model."""
    with tempfile.TemporaryDirectory() as volume:
        environ = {**HOME, **training_environ(DEMO if number % 2 else NAME, Path(volume))}
        environ |= {} if number % 2 else {"HF_ENDPOINT": hub.endpoint}
        command = [*HANDLER, "--serve", "--port", "0"]
        with start_command(command, environ, logs / f"kills-{number}.log") as worker:
            yield worker


def wait_for_moment(
    worker: BackgroundProcess, moment: Moment, rng: random.Random, startup_s: float
) -> None:
    """Wait for a random moment of a worker's startup, training or shutdown."""
    if moment is Moment.STARTING:
        time.sleep(rng.uniform(0, startup_s))
        return
    worker.wait_for_output("Uvicorn running on ")
    url = ServerProcess(worker.process, worker.log).url
    complete_with_grammar(url)
    begin_training(url)
    wait_until(lambda: ProcessTree.of_worker(worker).has_all(TRAINER))
    time.sleep(rng.uniform(0, MAX_RUN_S))
    if moment is Moment.STOPPING:
        worker.process.send_signal(signal.SIGTERM)
        time.sleep(rng.uniform(0, MAX_STOP_S))


async def run(args: Namespace) -> Report:
    """Kill workers sequentially."""
    return await asyncio.to_thread(kill_all, args)


def kill_all(args: Namespace) -> Report:
    kills, seed = args.main_kills, args.seed
    report = Report(f"kills, {kills} kills, seed {seed}")
    exit_s: dict[Moment, list[float]] = {moment: [] for moment in Moment}
    with hub_with(DEMO) as hub:
        hub.throttle = DOWNLOAD_BYTES_PER_S
        started_at = time.monotonic()
        with start_worker(hub, 0, args.logs) as worker:
            worker.wait_for_output("Uvicorn running on ")
            startup_s = time.monotonic() - started_at
        for number, moment in zip(range(kills), cycle(Moment), strict=False):
            rng = random.Random(f"{seed}/{number}")
            with start_worker(hub, number, args.logs) as worker:
                wait_for_moment(worker, moment, rng, startup_s)
                processes = kill_worker(worker)
                seconds, left = wait_until_exited(processes, EXIT_TIMEOUT_S)
            exit_s[moment].append(seconds)
            report.check(not left, f"kill {number} ({moment}): {left} outlive it")
    for moment, times_s in exit_s.items():
        report.add_goal(
            f"{len(times_s)} at a {moment}: nothing left after", times_s, 1.0, EXIT_GOAL_S
        )
    return report
