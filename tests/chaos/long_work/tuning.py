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
from support.processes.servers import ServerProcess
from support.volume import all_records

from chaos.long_work.crew import Crew, open_crew
from chaos.report import Report
from emulator import Job, LostJobHandling
from worker.fine_tunes.record import FineTune, FineTunes
from worker.fine_tunes.spec import CHECKPOINTS_DIR, EVENTS_FILE, OUTCOME_FILE, SCRATCH_DIR
from worker.volume.adapters import FILES, ORIGIN_FILE, WEIGHTS
from worker.volume.lease import LeaseDirectory

TRAINER = "trainer"
ROWS, EPOCHS, BATCH = 400, 5, 4
# The share of the rows that is used for training; the rest is for validation.
TRAINING_SHARE = 0.9
INPUT = "inbox/rows.jsonl"
# Maximum difference of a loss from the same loss of the undisturbed run.
MAX_LOSS_DIFFERENCE = 1e-3
LOSSES = ("train_loss", "valid_loss")


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training.

    ``losses`` are by step and name; ``seconds`` are the time from the request to the end.
    """

    steps: int
    losses: dict[tuple[int, str], float]
    weights: bytes
    seconds: float

    def distance(self, other: "TrainingResult") -> float:
        """Return the largest difference between two losses; infinity if steps are missing."""
        if self.losses.keys() != other.losses.keys():
            return math.inf
        return max(abs(loss - other.losses[key]) for key, loss in self.losses.items())


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process is running; a zombie isn't."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def private_memory(process: psutil.Process) -> int:
    """Return the resident bytes without mapped files such as libraries."""
    memory = process.memory_info()
    return int(memory.rss - memory.shared)


def moment_checks(fine_tune: FineTune, before: int) -> dict[str, Callable[[], bool]]:
    """Return a check for each moment of the attempts after the first ``before`` attempts."""

    def newest(*names: str) -> bool:
        attempts = fine_tune.attempt_paths()
        return len(attempts) > before and any((attempts[-1] / name).exists() for name in names)

    def writing() -> bool:
        attempts = fine_tune.attempt_paths()[before:]
        hidden = f"{CHECKPOINTS_DIR}/.*"
        return any(any(one.glob(f"{SCRATCH_DIR}/*")) or any(one.glob(hidden)) for one in attempts)

    return {
        "begun": lambda: newest(EVENTS_FILE),
        "checking": lambda: newest(EVENTS_FILE) and not newest(OUTCOME_FILE),
        "writing": writing,
        "publishing": lambda: fine_tune.adapter_choice is not None,
    }


@dataclass
class Tuning(Crew):
    """A volume with its fine-tunes and workers."""

    # Seconds between two polls; some moments are short.
    poll_s: float = 0.001
    count: int = 0
    attempts: int = 0
    # The largest difference of a loss from the undisturbed run.
    loss_difference: float = 0.0

    def start(self, *options: str) -> str:
        """Start another worker and return its id; one with options takes no jobs."""
        environ = {**WORKER, "BASE_PATH": str(self.root), "ENABLE_LORA": "1"}
        return self.begin_worker(
            [SCRIPT, *(options or ["--train"])], environ, takes_jobs=not options
        )

    def submit(self, **spec: Any) -> Job:
        """Submit a job that creates a fine-tune, or runs an existing one if ``spec`` names it."""
        hyperparameters = {"epochs": EPOCHS, "batch_size": BATCH}
        created = {"training_path": INPUT, "hyperparameters": hyperparameters}
        return self.send({"fine_tune": spec or created})

    async def create_over_http(self, name: str) -> FineTune:
        """Wait until a worker serves HTTP, then create a fine-tune there."""
        running = self.workers[name]
        await asyncio.to_thread(running.wait_for_output, "Uvicorn running on ")
        parameters = {"n_epochs": EPOCHS, "batch_size": BATCH}
        body = {"model": "demo", "training_file": INPUT, "hyperparameters": parameters}
        request = urllib.request.Request(
            f"{ServerProcess(running.process, running.log).url}/v1/fine_tuning/jobs",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        await asyncio.to_thread(lambda: urllib.request.urlopen(request).close())
        (fine_tune,) = self.list_fine_tunes()
        return fine_tune

    async def create_by_job(self) -> tuple[Job, FineTune]:
        """Submit a job that creates a fine-tune; wait until that exists."""
        before = {one.id for one in self.list_fine_tunes()}
        job = self.submit()
        await self.wait_until(
            lambda: len(self.list_fine_tunes()) > len(before), "no fine-tune is created"
        )
        (tuning,) = (one for one in self.list_fine_tunes() if one.id not in before)
        return job, tuning

    def list_fine_tunes(self) -> list[FineTune]:
        return all_records(FineTunes(settings(BASE_PATH=str(self.root))))

    async def wait_for_jobs(self, *jobs: Job) -> None:
        """Wait until jobs have ended, and check that none of them failed."""
        await super().wait_for_jobs(*jobs)
        for job in jobs:
            self.check(job.error is None, f"a job failed: {job.error}")

    def find_trainers(self, fine_tune: FineTune | None = None) -> list[psutil.Process]:
        """Return the processes that train or check rows, for one fine-tune or for the volume."""
        folder = str(fine_tune.directory if fine_tune else self.root)
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                command = process.cmdline()
                if TRAINER in command and any(part.startswith(folder) for part in command):
                    found.append(process)
        return found

    def find_holder(self, fine_tune: FineTune) -> str:
        """Return the id of the worker that holds the lease of a fine-tune."""
        claim = LeaseDirectory(fine_tune.lease_directory("run")).poll_claim()
        assert claim, "nobody has its lease"
        return next(name for name, one in self.workers.items() if one.process.pid == claim.pid)

    async def wait_unless_publishing(self, fine_tune: FineTune, seconds: float) -> None:
        """Wait for some seconds, or until the adapter is being published."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and fine_tune.adapter_choice is None:
            await asyncio.sleep(self.poll_s)

    async def wait_for_checkpoint(self, fine_tune: FineTune, epochs: int) -> None:
        """Wait for a checkpoint some epochs after the newest one, at most for the third to last."""
        steps = math.ceil(ROWS * TRAINING_SHARE / BATCH)
        done = fine_tune.durable_step() + epochs * steps
        wanted = min(done, (EPOCHS - 2) * steps)
        await self.wait_until(lambda: fine_tune.durable_step() >= wanted, f"no checkpoint {wanted}")

    async def wait_for_takeover(self, fine_tune: FineTune, before: int) -> None:
        """Wait until there are more than ``before`` attempts; record how long that took."""
        since = time.monotonic()
        await self.wait_until(lambda: len(fine_tune.attempt_paths()) > before, "nobody goes on")
        self.takeovers_s.append(time.monotonic() - since)

    def kill_trainer(self) -> None:
        for one in self.find_trainers():
            with suppress(psutil.Error):
                one.kill()

    def read_result(self, fine_tune: FineTune) -> TrainingResult:
        result = fine_tune.result
        assert result, fine_tune.id
        found = {
            (step, name): row[name]
            for step, row in fine_tune.metrics_by_step().items()
            for name in LOSSES
            if name in row
        }
        weights = self.root / "adapters" / (result.adapter or "-") / WEIGHTS
        content = weights.read_bytes() if weights.exists() else b""
        return TrainingResult(result.steps, found, content, result.at - fine_tune.created_at)

    def check_end(self, reference: TrainingResult) -> None:
        """Check that each fine-tune was cancelled or ended like the undisturbed one.

        Only the results may remain: no processes, no other adapters, no hidden files.
        """
        for one in self.list_fine_tunes():
            self.count += 1
            self.attempts += len(one.attempt_paths())
            result = one.result
            if not result or result.status != "succeeded":
                is_ok = result is not None and result.status == "cancelled"
                self.check(is_ok, f"{one.status}: {result and result.error}")
                continue
            found = self.read_result(one)
            is_ok = found.steps == reference.steps
            self.check(is_ok, f"{found.steps} steps, not {reference.steps}")
            difference = found.distance(reference)
            self.loss_difference = max(self.loss_difference, difference)
            self.check(difference < MAX_LOSS_DIFFERENCE, f"losses differ by {difference:g}")
            for name in (result.adapter, *(each.name for each in result.checkpoints)):
                folder = self.root / "adapters" / (name or "-")
                sizes = (
                    {file.name: file.stat().st_size for file in folder.iterdir()}
                    if folder.is_dir()
                    else {}
                )
                is_whole = sizes.keys() == {*FILES, ORIGIN_FILE}
                is_whole = is_whole and sizes[WEIGHTS] == len(found.weights)
                self.check(is_whole, f"the adapter {name} has {sorted(sizes)}")
        left = [one.pid for one in self.find_trainers()]
        self.check(not left, f"processes are left: {left}")
        results = [result for one in self.list_fine_tunes() if (result := one.result)]
        expected = {one.name for result in results for one in result.checkpoints}
        expected |= {result.adapter for result in results}
        adapters = self.root / "adapters"
        existing = {path.name for path in adapters.iterdir()} if adapters.is_dir() else set()
        wrong = existing ^ {name for name in expected if name}
        self.check(not wrong, f"adapters too many or missing: {sorted(wrong)}")


@asynccontextmanager
async def open_tuning(
    root: Path, report: Report, lost_as: LostJobHandling = LostJobHandling.FAILED
) -> AsyncIterator[Tuning]:
    """Create a volume with rows and an emulator; on exit, stop the workers."""
    async with open_crew(Tuning, root, report, lost_as) as tuning:
        pairs = ({"prompt": f"Say {n % 7}.", "response": f"It is {n % 7}."} for n in range(ROWS))
        (root / "inbox").mkdir(exist_ok=True)
        (root / INPUT).write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))
        yield tuning
