"""Workers on one volume, behind an emulator of their own, that a scenario disturbs."""

import asyncio
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from support.processes.background import HUNG_S, Background, background
from support.processes.emulated_endpoint import BackgroundWorker

from chaos.report import Report, percentile
from emulator import Emulator, Job, LostAs, Options


class Stuck(Exception):
    """What a scenario waits for does not come."""


@dataclass
class Crew(ABC):
    """Workers of one volume. Times are time.monotonic's.

    Args:
        root: of the volume; its name stands in messages.
        emulator: whose jobs they run.
        report: what it adds to.
    """

    root: Path
    emulator: Emulator
    report: Report
    workers: dict[str, Background] = field(default_factory=dict)
    takeovers_s: list[float] = field(default_factory=list)
    # Between two looks at the volume.
    look_s: float = 0.05
    _exits: ExitStack = field(default_factory=ExitStack)
    _started: int = 0

    @abstractmethod
    def start(self) -> str:
        """Start a further worker, and return its id."""

    def begin_worker(
        self, command: Sequence[str | Path], environ: dict[str, str], *, asks: bool = True
    ) -> str:
        """Start a further worker, and return its id; one that asks for no jobs is no endpoint's."""
        self._started += 1
        name = f"worker-{self._started}"
        platform = self.emulator.worker_environ(name) if asks else {}
        log = self.root.with_name(f"{self.root.name}-{name}.log")
        running = self._exits.enter_context(background(command, {**environ, **platform}, log))
        self.workers[name] = running
        if asks:
            self.emulator.queue.worker(name).process = BackgroundWorker(running)
        return name

    async def ready(self, name: str) -> None:
        """Wait until a worker has asked for jobs."""
        worker = self.emulator.queue.worker(name)
        ready = await worker.changed.wait_for(lambda: worker.ready, HUNG_S)
        self.check(ready, f"{name} never asked for a job")

    async def two(self) -> tuple[str, str]:
        """Start two workers, and wait until both ask for jobs."""
        names = self.start(), self.start()
        for name in names:
            await self.ready(name)
        return names

    async def kill(self, name: str) -> Background:
        """Kill a worker, and give its jobs back to the queue."""
        running = self.workers.pop(name)
        await asyncio.to_thread(running.kill)
        self.emulator.queue.lose(self.emulator.queue.worker(name))
        return running

    def send(self, payload: dict[str, Any]) -> Job:
        return self.emulator.queue.submit({"input": payload})

    async def ended(self, *jobs: Job) -> None:
        """Wait until jobs have ended.

        Raises:
            Stuck: one does not end.
        """
        for job in jobs:
            if not await job.wait_ended(HUNG_S):
                raise Stuck(f"a job is {job.status} for ever")

    def check(self, holds: object, otherwise: str) -> None:
        self.report.check(holds, f"{self.root.name}: {otherwise}")

    async def until(self, condition: Callable[[], object], otherwise: str) -> None:
        """Wait for what is on the volume.

        Raises:
            Stuck: it does not come.
        """
        deadline = time.monotonic() + HUNG_S
        while not condition():
            if time.monotonic() > deadline:
                raise Stuck(otherwise)
            await asyncio.sleep(self.look_s)

    def close(self) -> None:
        for running in self.workers.values():
            running.kill()
        self._exits.close()


Made = TypeVar("Made", bound=Crew)


@asynccontextmanager
async def crew(kind: type[Made], root: Path, report: Report, **more: Any) -> AsyncIterator[Made]:
    """Make a volume, and an emulator; leaving ends the workers. What does not come is reported."""
    await asyncio.to_thread(root.mkdir, parents=True, exist_ok=True)
    async with Emulator(Options(take_poll_s=1, lost_as=LostAs.REQUEUED)) as emulator:
        made = kind(root, emulator, report, **more)
        try:
            yield made
        except Stuck as stuck:
            made.check(False, str(stuck))
        finally:
            await asyncio.to_thread(made.close)


def empty(place: Path) -> Path:
    """Make a folder that holds nothing."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    return place


def add_takeovers(report: Report, what: str, ran: Sequence[Crew]) -> None:
    took_s = [one for made in ran for one in made.takeovers_s]
    middle, longest = percentile(took_s, 0.5), max(took_s, default=0)
    report.figures.append(f"{len(took_s)} {what} p50 {middle:.1f} s, max {longest:.1f}")
