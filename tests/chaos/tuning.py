"""One volume, the fine-tunes on it, and the workers that run them."""

import asyncio
import json
import math
import os
import signal
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from support.engine.scripted import settings
from support.processes.background import HUNG_S, Background, background
from support.processes.commands import SCRIPT, WORKER
from support.processes.emulated_endpoint import BackgroundWorker
from support.processes.http_worker import Served

from chaos.report import Report
from chaos.trainings import TRAINER, Numbers, trainers
from emulator import Emulator, Job, LostAs, Options
from worker.fine_tunes.attempt import durable_step
from worker.fine_tunes.events import by_step, events
from worker.fine_tunes.request import Result
from worker.fine_tunes.state import FineTune
from worker.fine_tunes.store import FineTunes
from worker.volume.adapters import FILES, MADE, WEIGHTS
from worker.volume.lease import Leases

ROWS, EPOCHS, BATCH = 400, 5, 4
# The part of the rows that is not held out.
TRAINED = 0.9
INPUT = "inbox/rows.jsonl"
# Between two looks at the volume: some moments are short.
LOOK_S = 0.001
# What losses may differ by from those of a run that nobody disturbed.
NEAR = 1e-3
LOSSES = ("train_loss", "valid_loss")
# Seconds; longer than a worker counts as alive, and trains, on a busy machine.
STUCK_S = 150.0


class Stuck(Exception):
    """What a scenario waits for does not come."""


@dataclass
class Tuning:
    """A volume and its workers.

    Args:
        root: of the volume.
        emulator: whose jobs run its fine-tunes.
        report: what it adds to.
    """

    root: Path
    emulator: Emulator
    report: Report
    workers: dict[str, Background] = field(default_factory=dict)
    # For the table.
    count: int = 0
    disturbances: int = 0
    attempts: int = 0
    apart: float = 0.0
    same: str = "-"
    cancels_s: list[float] = field(default_factory=list)
    takeovers_s: list[float] = field(default_factory=list)
    _exits: ExitStack = field(default_factory=ExitStack)
    _started: int = 0

    @property
    def name(self) -> str:
        """For messages."""
        return self.root.name

    def start(self, *options: str) -> str:
        """Start a further worker, and return its id; with options one that is no endpoint's."""
        self._started += 1
        name = f"worker-{self._started}"
        environ = {**WORKER, "BASE_PATH": str(self.root), "ENABLE_LORA": "1"}
        if not options:
            environ |= self.emulator.worker_environ(name)
        command = [SCRIPT, *(options or ["--train"])]
        log = self.root.with_name(f"{self.name}-{name}.log")
        running = self._exits.enter_context(background(command, environ, log))
        self.workers[name] = running
        if not options:
            self.emulator.queue.worker(name).process = BackgroundWorker(running)
        return name

    async def ready(self, name: str) -> None:
        """Wait until a worker has asked for jobs."""
        worker = self.emulator.queue.worker(name)
        ready = await worker.changed.wait_for(lambda: worker.ready, HUNG_S)
        self.check(holds=ready, otherwise=f"{name} never asked for a job")

    async def two(self) -> tuple[str, str]:
        names = self.start(), self.start()
        for name in names:
            await self.ready(name)
        return names

    def submit(self, **spec: Any) -> Job:
        """Submit a job that creates a fine-tune, or runs the one that is named."""
        hyperparameters = {"epochs": EPOCHS, "batch_size": BATCH}
        created = {"training_path": INPUT, "hyperparameters": hyperparameters}
        return self.emulator.queue.submit({"input": {"fine_tune": spec or created}})

    async def served(self, name: str) -> FineTune:
        """Wait until a worker serves HTTP, and create a fine-tune there."""
        running = self.workers[name]
        await asyncio.to_thread(running.wait_for_output, "Uvicorn running on ")
        parameters = {"n_epochs": EPOCHS, "batch_size": BATCH}
        body = {"model": "demo", "training_file": INPUT, "hyperparameters": parameters}
        request = urllib.request.Request(
            f"{Served(running.process, running.log).url}/v1/fine_tuning/jobs",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        await asyncio.to_thread(lambda: urllib.request.urlopen(request).close())
        (fine_tune,) = self.all()
        return fine_tune

    async def begin(self) -> tuple[Job, FineTune]:
        """Submit a job that creates a fine-tune, and wait until that is there."""
        before = {one.id for one in self.all()}
        job = self.submit()
        await self.until(lambda: len(self.all()) > len(before), "no fine-tune is created")
        (made,) = (one for one in self.all() if one.id not in before)
        return job, made

    def all(self) -> list[FineTune]:
        return FineTunes.of(settings(BASE_PATH=str(self.root))).all()

    def check(self, *, holds: bool, otherwise: str) -> None:
        self.report.check(holds=holds, otherwise=f"{self.name}: {otherwise}")

    async def until(self, condition: Callable[[], object], otherwise: str) -> None:
        """Wait for what is on the volume.

        Raises:
            Stuck: it does not come.
        """
        deadline = time.monotonic() + STUCK_S
        while not condition():
            if time.monotonic() > deadline:
                raise Stuck(otherwise)
            await asyncio.sleep(LOOK_S)

    async def ended(self, *jobs: Job) -> None:
        """Wait until jobs have ended well."""
        for job in jobs:
            await job.wait_ended(HUNG_S)
            self.check(holds=job.error is None, otherwise=f"a job failed: {job.error}")

    def trainers(self, fine_tune: FineTune | None = None) -> list[psutil.Process]:
        """Return the processes that train, and check rows, of all or one on this volume."""
        return trainers(fine_tune.directory if fine_tune else self.root)

    def holder(self, fine_tune: FineTune) -> str:
        """Return the worker that works on a fine-tune."""
        claim = Leases(fine_tune.leases()).look()
        assert claim, "nobody has its lease"
        return next(name for name, one in self.workers.items() if one.process.pid == claim.pid)

    async def pause(self, fine_tune: FineTune, seconds: float) -> None:
        """Wait for so long, but not until its adapter is being published."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and fine_tune.publishing is None:
            await asyncio.sleep(LOOK_S)

    async def further(self, fine_tune: FineTune, epochs: int) -> None:
        """Wait for a checkpoint so many epochs after the newest, but not for the last but one.

        Raises:
            Stuck: there is none.
        """
        steps = math.ceil(ROWS * TRAINED / BATCH)
        done = durable_step(fine_tune.attempts()) + epochs * steps
        wanted = min(done, (EPOCHS - 2) * steps)
        await self.until(
            lambda: durable_step(fine_tune.attempts()) >= wanted, f"no checkpoint {wanted}"
        )

    async def taken_over(self, fine_tune: FineTune, before: int) -> None:
        """Wait for an attempt after so many others; note how long that took.

        Raises:
            Stuck: there is none, and it has not ended.
        """
        since = time.monotonic()
        await self.until(lambda: len(fine_tune.attempts()) > before, "nobody goes on")
        self.takeovers_s.append(time.monotonic() - since)

    def kill_trainer(self) -> None:
        for one in self.trainers():
            with suppress(psutil.Error):
                if TRAINER in one.cmdline():
                    one.kill()

    async def kill(self, name: str) -> None:
        """Kill a worker, and give its jobs back to the queue."""
        running = self.workers.pop(name)
        os.killpg(running.process.pid, signal.SIGKILL)
        await asyncio.to_thread(running.kill)
        self.emulator.queue.lose(self.emulator.queue.worker(name))

    def numbers(self, fine_tune: FineTune) -> Numbers:
        result = fine_tune.result
        assert result, fine_tune.id
        found = {
            (step, name): row[name]
            for step, row in by_step(events(fine_tune)).items()
            for name in LOSSES
            if name in row
        }
        weights = self.root / "adapters" / (result.adapter or "-") / WEIGHTS
        content = weights.read_bytes() if weights.exists() else b""
        return Numbers(result.steps, found, content, result.at - fine_tune.created_at)

    def _check_succeeded(self, fine_tune: FineTune, result: Result, reference: Numbers) -> None:
        """Check that it has ended as one that nobody has disturbed."""
        found = self.numbers(fine_tune)
        same = found.steps == reference.steps
        self.check(holds=same, otherwise=f"{found.steps} steps, not {reference.steps}")
        self.apart = max(self.apart, found.distance(reference))
        self.check(holds=self.apart < NEAR, otherwise=f"losses differ by {self.apart:g}")
        same = found.weights == reference.weights and self.same != "no"
        self.same = "yes" if same else "no"
        for name in (result.adapter, *(one.name for one in result.checkpoints)):
            place = self.root / "adapters" / (name or "-")
            files = {file.name for file in place.iterdir()} if place.is_dir() else set()
            whole = files == {*FILES, MADE} and len(found.weights) == _size(place / WEIGHTS)
            self.check(holds=whole, otherwise=f"the adapter {name} has {sorted(files)}")

    def check_end(self, reference: Numbers) -> None:
        """Check that all have ended, as one that nobody has disturbed, or been cancelled.

        Nothing is left but the results: no process, no other adapter, nothing hidden.
        """
        for one in self.all():
            self.count += 1
            self.attempts += len(one.attempts())
            result = one.result
            if result and result.status == "succeeded":
                self._check_succeeded(one, result, reference)
            else:
                holds = result is not None and result.status == "cancelled"
                self.check(holds=holds, otherwise=f"{one.status}: {result and result.error}")
        left = [one.pid for one in self.trainers()]
        self.check(holds=not left, otherwise=f"processes are left: {left}")
        results = [result for one in self.all() if (result := one.result)]
        expected = {one.name for result in results for one in result.checkpoints}
        expected |= {result.adapter for result in results}
        adapters = self.root / "adapters"
        there = {path.name for path in adapters.iterdir()} if adapters.is_dir() else set()
        wrong = there ^ {name for name in expected if name}
        self.check(holds=not wrong, otherwise=f"adapters too many or missing: {sorted(wrong)}")

    def close(self) -> None:
        for running in self.workers.values():
            running.kill()
        self._exits.close()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@asynccontextmanager
async def tuning(root: Path, report: Report) -> AsyncIterator[Tuning]:
    """Make a volume with rows, and an emulator; leaving ends the workers."""
    await asyncio.to_thread(root.mkdir, parents=True, exist_ok=True)
    pairs = ({"prompt": f"Say {n % 7}.", "response": f"It is {n % 7}."} for n in range(ROWS))
    (root / "inbox").mkdir(exist_ok=True)
    (root / INPUT).write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))
    async with Emulator(Options(take_poll_s=1, lost_as=LostAs.REQUEUED)) as emulator:
        made = Tuning(root, emulator, report)
        try:
            yield made
        finally:
            await asyncio.to_thread(made.close)
