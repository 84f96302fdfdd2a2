"""Workers on one volume, behind their own emulator, that a scenario disturbs."""

import asyncio
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from support.processes.background import HUNG_S, BackgroundProcess, start_command
from support.processes.emulated_endpoint import BackgroundWorker

from chaos.report import Report, percentile
from emulator import Emulator, Job, LostJobHandling, Options


class Stuck(Exception):
    """An event that a scenario waits for does not occur."""


@dataclass
class Crew(ABC):
    """Workers of one volume. Times are those of ``time.monotonic``.

    The name of the volume's directory, ``root``, appears in messages.
    """

    root: Path
    emulator: Emulator
    report: Report
    workers: dict[str, BackgroundProcess] = field(default_factory=dict)
    takeovers_s: list[float] = field(default_factory=list)
    # Seconds between two polls of the volume.
    poll_s: float = 0.05
    _exit_stack: ExitStack = field(default_factory=ExitStack)
    _worker_count: int = 0

    @abstractmethod
    def start(self) -> str:
        """Start another worker and return its id."""

    def begin_worker(
        self, command: Sequence[str | Path], environ: dict[str, str], *, takes_jobs: bool = True
    ) -> str:
        """Start another worker and return its id; it joins the endpoint only if it takes jobs."""
        self._worker_count += 1
        name = f"worker-{self._worker_count}"
        platform = self.emulator.worker_environ(name) if takes_jobs else {}
        log = self.root.with_name(f"{self.root.name}-{name}.log")
        running = self._exit_stack.enter_context(
            start_command(command, {**environ, **platform}, log)
        )
        self.workers[name] = running
        if takes_jobs:
            self.emulator.queue.get_worker(name).process = BackgroundWorker(running)
        return name

    async def wait_until_ready(self, name: str) -> None:
        """Wait until a worker has requested jobs."""
        worker = self.emulator.queue.get_worker(name)
        ready = await worker.changed.wait_for(lambda: worker.ready, HUNG_S)
        self.check(ready, f"{name} never asked for a job")

    async def start_two(self) -> tuple[str, str]:
        """Start two workers and wait until both have requested jobs."""
        names = self.start(), self.start()
        for name in names:
            await self.wait_until_ready(name)
        return names

    async def kill(self, name: str) -> BackgroundProcess:
        """Kill a worker; its jobs fail or return to the queue, as the emulator is set."""
        running = self.workers.pop(name)
        await asyncio.to_thread(running.kill)
        self.emulator.queue.handle_worker_exit(self.emulator.queue.get_worker(name))
        return running

    def send(self, payload: dict[str, Any]) -> Job:
        return self.emulator.queue.submit({"input": payload})

    async def wait_for_jobs(self, *jobs: Job) -> None:
        """Wait until jobs have ended; raise `Stuck` if one does not."""
        for job in jobs:
            if not await job.wait_for_end(HUNG_S):
                raise Stuck(f"a job is {job.status} for ever")

    def check(self, is_ok: object, problem: str) -> None:
        self.report.check(is_ok, f"{self.root.name}: {problem}")

    async def wait_until(self, condition: Callable[[], object], problem: str) -> None:
        """Poll until a condition on the volume holds; raise `Stuck` if it takes too long."""
        deadline = time.monotonic() + HUNG_S
        while not condition():
            if time.monotonic() > deadline:
                raise Stuck(problem)
            await asyncio.sleep(self.poll_s)

    def close(self) -> None:
        for running in self.workers.values():
            running.kill()
        self._exit_stack.close()


AnyCrew = TypeVar("AnyCrew", bound=Crew)


@asynccontextmanager
async def open_crew(
    crew_type: type[AnyCrew],
    root: Path,
    report: Report,
    lost_as: LostJobHandling = LostJobHandling.FAILED,
    **options: Any,
) -> AsyncIterator[AnyCrew]:
    """Create a volume and an emulator; on exit, report a stuck scenario and stop the workers."""
    await asyncio.to_thread(root.mkdir, parents=True, exist_ok=True)
    async with Emulator(Options(long_poll_s=1, lost_as=lost_as)) as emulator:
        crew = crew_type(root, emulator, report, **options)
        try:
            yield crew
        except Stuck as stuck:
            crew.check(False, str(stuck))
        finally:
            await asyncio.to_thread(crew.close)


def make_empty_folder(folder: Path) -> Path:
    """Create an empty folder; remove an existing one first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def add_takeovers(report: Report, title: str, crews: Sequence[Crew]) -> None:
    seconds = [seconds_ for crew in crews for seconds_ in crew.takeovers_s]
    middle, longest = percentile(seconds, 0.5), max(seconds, default=0)
    report.figures.append(f"{len(seconds)} {title} p50 {middle:.1f} s, max {longest:.1f}")
