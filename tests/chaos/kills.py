"""SIGKILL of a worker's main process at random moments: none of its processes outlives it.

Its log is in JSON; it has a core, and a process that tries grammars out. It downloads its model in
every other start, trains while it runs, and ends after a SIGTERM.
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
from support.processes.background import Background, background, wait_until
from support.processes.commands import DEMO, HANDLER, HOME
from support.processes.http_worker import Served
from support.processes.kills import (
    TRAINER,
    Family,
    begin_training,
    kill,
    seconds_until_gone,
    training_worker,
)

from chaos.report import Report

# Bytes per second: the download takes as long as the import.
SLOWLY = 1_000_000
# After the training has begun, and after the SIGTERM, in seconds at most.
RUNS_S, ENDS_S = 5.0, 0.2
# Within which nothing may be left, and after which that is no matter of a busy machine, in seconds.
GONE_S, NEVER_S = 1.0, 20.0


class Moment(StrEnum):
    """What a worker does when it is killed."""

    STARTS = "start"
    RUNS = "run"
    ENDS = "end"


@contextmanager
def started(hub: Hub, number: int, logs: Path) -> Iterator[Background]:
    """Start a worker on a volume of its own; every other one downloads its model."""
    with tempfile.TemporaryDirectory() as volume:
        environ = {**HOME, **training_worker(DEMO if number % 2 else NAME, Path(volume))}
        environ |= {} if number % 2 else {"HF_ENDPOINT": hub.endpoint}
        command = [*HANDLER, "--serve", "--port", "0"]
        with background(command, environ, logs / f"kills-{number}.log") as worker:
            yield worker


def wait_for(worker: Background, moment: Moment, rng: random.Random, start_s: float) -> None:
    """Wait for a random moment of a start, of a training, or of an end."""
    if moment is Moment.STARTS:
        time.sleep(rng.uniform(0, start_s))
        return
    worker.wait_for_output("Uvicorn running on ")
    begin_training(Served(worker.process, worker.log).url)
    wait_until(lambda: Family.of(worker).has(TRAINER))
    time.sleep(rng.uniform(0, RUNS_S))
    if moment is Moment.ENDS:
        worker.process.send_signal(signal.SIGTERM)
        time.sleep(rng.uniform(0, ENDS_S))


async def run(args: Namespace) -> Report:
    """Kill so many workers, one after the other."""
    return await asyncio.to_thread(kill_all, args)


def kill_all(args: Namespace) -> Report:
    kills, seed = args.main_kills, args.seed
    report = Report(f"kills, {kills} kills, seed {seed}")
    gone_s: dict[Moment, list[float]] = {moment: [] for moment in Moment}
    with hub_with(DEMO) as hub:
        hub.throttle = SLOWLY
        begun = time.monotonic()
        with started(hub, 0, args.logs) as worker:
            worker.wait_for_output("Uvicorn running on ")
            start_s = time.monotonic() - begun
        for number, moment in zip(range(kills), cycle(Moment), strict=False):
            rng = random.Random(f"{seed}/{number}")
            with started(hub, number, args.logs) as worker:
                wait_for(worker, moment, rng, start_s)
                family = kill(worker)
                seconds, left = seconds_until_gone(family, NEVER_S)
            gone_s[moment].append(seconds)
            report.check(not left, f"kill {number} ({moment}): {left} outlive it")
    for moment, all_s in gone_s.items():
        report.goal(f"{len(all_s)} at a {moment}: nothing left after", all_s, 1.0, GONE_S)
    return report
