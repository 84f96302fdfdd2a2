"""One volume, the fine-tunes on it, and the workers that run them."""

import asyncio
import json
import math
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from support.engine.scripted import settings
from support.processes.commands import SCRIPT, WORKER
from support.processes.http_worker import Served

from chaos.long_work.crew import Crew, crew
from chaos.report import Report
from emulator import Job
from trainer.spec import CHECKED, CHECKPOINTS, EVENTS, WRITING
from worker.fine_tunes.record import FineTune, FineTunes
from worker.fine_tunes.request import FineTuneResult
from worker.volume.adapters import FILES, MADE, WEIGHTS
from worker.volume.lease import Leases

TRAINER = "trainer"
ROWS, EPOCHS, BATCH = 400, 5, 4
# The part of the rows that is not held out.
TRAINED = 0.9
INPUT = "inbox/rows.jsonl"
# What losses may differ by from those of a run that nobody disturbed.
NEAR = 1e-3
LOSSES = ("train_loss", "valid_loss")


@dataclass(frozen=True)
class Numbers:
    """What a training came to.

    ``losses`` are by step and name, ``seconds`` from its request to its end.
    """

    steps: int
    losses: dict[tuple[int, str], float]
    weights: bytes
    seconds: float

    def distance(self, other: "Numbers") -> float:
        """Return the most that a loss differs by; infinite if one lacks steps."""
        if self.losses.keys() != other.losses.keys():
            return math.inf
        return max(abs(loss - other.losses[key]) for key, loss in self.losses.items())


def trainers(place: Path) -> list[psutil.Process]:
    """Return the processes that train, or check rows, below a directory."""
    found = []
    for one in psutil.process_iter():
        with suppress(psutil.Error):
            command = one.cmdline()
            ours = TRAINER in command
            if ours and any(part.startswith(str(place)) for part in command):
                found.append(one)
    return found


def lives(process: psutil.Process) -> bool:
    """Return whether a process has not ended; a zombie has."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def own_memory(process: psutil.Process) -> int:
    """Return the bytes that are in memory, but for what files are mapped, as libraries are."""
    memory = process.memory_info()
    return int(memory.rss - memory.shared)


def moments(fine_tune: FineTune, before: int) -> dict[str, Callable[[], bool]]:
    """Return how it is seen that an attempt after so many others is in the middle of something."""

    def newest(*names: str) -> bool:
        attempts = fine_tune.attempts()
        return len(attempts) > before and any((attempts[-1] / name).exists() for name in names)

    def writing() -> bool:
        attempts = fine_tune.attempts()[before:]
        hidden = f"{CHECKPOINTS}/.*"
        return any(any(one.glob(f"{WRITING}/*")) or any(one.glob(hidden)) for one in attempts)

    return {
        "begun": lambda: newest(EVENTS),
        "checking": lambda: newest(EVENTS) and not newest(CHECKED),
        "writing": writing,
        "publishing": lambda: fine_tune.publishing is not None,
    }


@dataclass
class Tuning(Crew):
    """A volume, its fine-tunes and its workers."""

    # Some moments are short.
    look_s: float = 0.001
    count: int = 0
    attempts: int = 0
    # The most that a loss differs by from that of a run that nobody disturbed.
    apart: float = 0.0

    def start(self, *options: str) -> str:
        """Start a further worker, and return its id; with options one that is no endpoint's."""
        environ = {**WORKER, "BASE_PATH": str(self.root), "ENABLE_LORA": "1"}
        return self.begin_worker([SCRIPT, *(options or ["--train"])], environ, asks=not options)

    def submit(self, **spec: Any) -> Job:
        """Submit a job that creates a fine-tune, or runs the one that is named."""
        hyperparameters = {"epochs": EPOCHS, "batch_size": BATCH}
        created = {"training_path": INPUT, "hyperparameters": hyperparameters}
        return self.send({"fine_tune": spec or created})

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
        return FineTunes(settings(BASE_PATH=str(self.root))).all()

    async def ended(self, *jobs: Job) -> None:
        """Wait until jobs have ended, and check that they have not failed."""
        await super().ended(*jobs)
        for job in jobs:
            self.check(job.error is None, f"a job failed: {job.error}")

    def trainers(self, fine_tune: FineTune | None = None) -> list[psutil.Process]:
        """Return the processes that train, and check rows, of all or one on this volume."""
        return trainers(fine_tune.directory if fine_tune else self.root)

    def holder(self, fine_tune: FineTune) -> str:
        """Return the worker that works on a fine-tune."""
        claim = Leases(fine_tune.leases("run")).look()
        assert claim, "nobody has its lease"
        return next(name for name, one in self.workers.items() if one.process.pid == claim.pid)

    async def pause(self, fine_tune: FineTune, seconds: float) -> None:
        """Wait for so long, but not until its adapter is being published."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and fine_tune.publishing is None:
            await asyncio.sleep(self.look_s)

    async def further(self, fine_tune: FineTune, epochs: int) -> None:
        """Wait for a checkpoint so many epochs after the newest, but not for the last but one.

        Raises:
            Stuck: there is none.
        """
        steps = math.ceil(ROWS * TRAINED / BATCH)
        done = fine_tune.durable_step() + epochs * steps
        wanted = min(done, (EPOCHS - 2) * steps)
        await self.until(lambda: fine_tune.durable_step() >= wanted, f"no checkpoint {wanted}")

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

    def numbers(self, fine_tune: FineTune) -> Numbers:
        result = fine_tune.result
        assert result, fine_tune.id
        found = {
            (step, name): row[name]
            for step, row in fine_tune.metrics().items()
            for name in LOSSES
            if name in row
        }
        weights = self.root / "adapters" / (result.adapter or "-") / WEIGHTS
        content = weights.read_bytes() if weights.exists() else b""
        return Numbers(result.steps, found, content, result.at - fine_tune.created_at)

    def _check_succeeded(
        self, fine_tune: FineTune, result: FineTuneResult, reference: Numbers
    ) -> None:
        """Check that it has ended as one that nobody has disturbed."""
        found = self.numbers(fine_tune)
        self.check(found.steps == reference.steps, f"{found.steps} steps, not {reference.steps}")
        apart = found.distance(reference)
        self.apart = max(self.apart, apart)
        self.check(apart < NEAR, f"losses differ by {apart:g}")
        for name in (result.adapter, *(one.name for one in result.checkpoints)):
            place = self.root / "adapters" / (name or "-")
            files = {file.name for file in place.iterdir()} if place.is_dir() else set()
            whole = files == {*FILES, MADE} and len(found.weights) == _size(place / WEIGHTS)
            self.check(whole, f"the adapter {name} has {sorted(files)}")

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
                self.check(holds, f"{one.status}: {result and result.error}")
        left = [one.pid for one in self.trainers()]
        self.check(not left, f"processes are left: {left}")
        results = [result for one in self.all() if (result := one.result)]
        expected = {one.name for result in results for one in result.checkpoints}
        expected |= {result.adapter for result in results}
        adapters = self.root / "adapters"
        there = {path.name for path in adapters.iterdir()} if adapters.is_dir() else set()
        wrong = there ^ {name for name in expected if name}
        self.check(not wrong, f"adapters too many or missing: {sorted(wrong)}")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@asynccontextmanager
async def tuning(root: Path, report: Report) -> AsyncIterator[Tuning]:
    """Make a volume with rows, and an emulator; leaving ends the workers."""
    async with crew(Tuning, root, report) as made:
        pairs = ({"prompt": f"Say {n % 7}.", "response": f"It is {n % 7}."} for n in range(ROWS))
        (root / "inbox").mkdir(exist_ok=True)
        (root / INPUT).write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))
        yield made
