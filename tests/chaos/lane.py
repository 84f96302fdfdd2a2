"""One batch on one volume, the workers that run it, and a reader that looks at it all the time."""

import asyncio
import json
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import ROOT
from support.batches import as_text, content, lines
from support.engine.scripted import CHAT, settings
from support.processes.background import HUNG_S, Background, background
from support.processes.commands import HOME, SCRIPT, WORKER
from support.processes.emulated_endpoint import BackgroundWorker

from chaos.report import Report
from emulator import Emulator, Job, LostAs, Options
from worker.batches.parts import RECORDS, finished, text_of
from worker.batches.state import Batch
from worker.batches.store import Batches

ANSWERING = Path(__file__).with_name("answering.py")
INPUT = "inbox/in.jsonl"
READ_S = 0.2
# Tokens of a line of the real engine's.
TOKENS = 48
# What the real engine logs of a line that begins.
BEGUN = re.compile(r"Added request \S*(batch_req_[a-z0-9]{24})")


@dataclass
class Lane:
    """One batch. Times are time.monotonic's.

    Args:
        root: of its volume.
        emulator: whose jobs run it.
        report: what it adds to.
        name: for its messages.
        real: whether its workers have the real engine.
        count: lines of it.
    """

    root: Path
    emulator: Emulator
    report: Report
    name: str
    real: bool
    count: int
    workers: dict[str, Background] = field(default_factory=dict)
    takeovers_s: list[float] = field(default_factory=list)
    # After each death: lines that had been answered and were not durable, and the oldest one's age.
    lost: list[int] = field(default_factory=list)
    oldest_s: list[float] = field(default_factory=list)
    reads: int = 0
    _exits: ExitStack = field(default_factory=ExitStack)
    _started: int = 0

    @property
    def notes(self) -> Path:
        return self.root / "notes"

    @property
    def batch(self) -> Batch:
        (found,) = Batches.of(settings(FILES_PATH=str(self.root))).all()
        return found

    def write_input(self, jobs: int = 1) -> dict[str, Any]:
        """Write the input, and return that of the job that runs it, which so many may share."""
        body = {"max_tokens": TOKENS, "ignore_eos": True} if self.real else {}
        made = [{**one, "body": {**one["body"], **body}} for one in lines(self.count)]
        (self.root / "inbox").mkdir(exist_ok=True)
        (self.root / INPUT).write_bytes(as_text(made))
        return {"batch": {"input_path": INPUT, "endpoint": CHAT, "data_parallelism": jobs}}

    def submit(self, payload: dict[str, Any]) -> Job:
        return self.emulator.queue.submit({"input": payload})

    def go_on(self) -> Job:
        """Submit a further job that runs the batch."""
        return self.submit({"batch": {"id": self.batch.id}})

    def start(self) -> str:
        """Start a further worker, and return its id."""
        self._started += 1
        name = f"worker-{self._started}"
        log = self.root / f"{name}.log"
        platform = self.emulator.worker_environ(name)
        if self.real:
            # One job, so that a worker that is about to go does not take the one for the next.
            environ = {**WORKER, **platform, "FILES_PATH": str(self.root), "MAX_CONCURRENCY": "1"}
            # Lines that begin are counted in the log.
            environ |= {"DISABLE_LOG_REQUESTS": "0"}
            running = self._exits.enter_context(background([SCRIPT], environ, log))
        else:
            paths = f"{ROOT}/src:{ROOT}/tests"
            environ = {**HOME, **platform, "PYTHONPATH": paths, "RUNPOD_LOG_LEVEL": "INFO"}
            environ |= {"RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true", "RUNPOD_SKIP_GPU_CHECK": "true"}
            command = [sys.executable, "-u", str(ANSWERING), str(self.root), str(self.notes)]
            running = self._exits.enter_context(background(command, environ, log))
        self.emulator.queue.worker(name).process = BackgroundWorker(running)
        self.workers[name] = running
        return name

    async def ready(self, name: str) -> None:
        """Wait until a worker has asked for jobs."""
        worker = self.emulator.queue.worker(name)
        ready = await worker.changed.wait_for(lambda: worker.ready, HUNG_S)
        self.report.check(holds=ready, otherwise=f"{self.name}: {name} never asked for a job")

    async def two(self) -> tuple[str, str]:
        """Start two workers, and wait until both ask for jobs."""
        names = self.start(), self.start()
        for name in names:
            await self.ready(name)
        return names

    async def kill(self, name: str) -> None:
        """Kill a worker, note what it takes with it, and give its job back to the queue."""
        running = self.workers.pop(name)
        await asyncio.to_thread(running.kill)
        if not self.real:
            self._note_lost(str(running.process.pid))
        self.emulator.queue.lose(self.emulator.queue.worker(name))

    def _note_lost(self, of: str) -> None:
        noted = self.noted()
        answered = {name: at for at, pid, what, name in noted if (pid, what) == (of, "ended")}
        durable = {f"c{number - 1}" for number in self.durable()}
        lost = [at for name, at in answered.items() if name not in durable]
        last = max(answered.values(), default=0)
        self.lost.append(len(lost))
        self.oldest_s.append(last - min(lost, default=last))

    def noted(self) -> list[tuple[float, str, str, str]]:
        """Return the notes of the scripted engines."""
        text = self.notes.read_text() if self.notes.exists() else ""
        words = [one.split() for one in text.splitlines() if not one.endswith(" -")]
        return [(float(at), pid, what, name) for at, pid, what, name in words]

    def durable(self) -> set[int]:
        return set(finished(self.batch.parts))

    def parts(self) -> set[str]:
        """Return the parts that have lines."""
        return {path.name for path in self.batch.parts.glob("*.records") if path.stat().st_size}

    async def progress(self, more: int = 1) -> None:
        """Wait until so many further lines are durable, or the batch has ended."""
        async with asyncio.timeout(HUNG_S):
            while not Batches.of(settings(FILES_PATH=str(self.root))).all():
                await asyncio.sleep(0.1)
            before = len(self.durable())
            while len(self.durable()) < before + more and not self.batch.ended():
                await asyncio.sleep(0.05)

    async def ended(self) -> None:
        """Wait until the batch has ended: of two workers one may say so before."""
        async with asyncio.timeout(HUNG_S):
            while not self.batch.ended():
                await asyncio.sleep(0.05)

    @asynccontextmanager
    async def takeover(self) -> AsyncIterator[None]:
        """Wait, after the block, until another attempt has durable lines; note how long it took."""
        before, since = self.parts(), time.monotonic()
        yield
        early = self.batch.ended()
        self.report.check(holds=not early, otherwise=f"{self.name}: ended before its disturbance")
        if early:
            return
        async with asyncio.timeout(HUNG_S):
            while not (self.parts() - before or self.batch.ended()):
                await asyncio.sleep(0.05)
        self.takeovers_s.append(time.monotonic() - since)

    async def read(self) -> None:
        """Look at the batch until this is cancelled: nothing falls, nothing is half a line."""
        done = completed = 0
        while True:
            await asyncio.sleep(READ_S)
            if not Batches.of(settings(FILES_PATH=str(self.root))).all():
                continue
            shown = await asyncio.to_thread(self.batch.shown)
            counts = shown["request_counts"]
            now = counts["completed"] + counts["failed"]
            falls = now < done or counts["completed"] < completed
            self.report.check(holds=not falls, otherwise=f"{self.name}: {done} falls to {now}")
            done, completed = max(done, now), max(completed, counts["completed"])
            wrong = await asyncio.to_thread(self._wrong_line)
            self.report.check(holds=not wrong, otherwise=f"{self.name}: a wrong line: {wrong}")
            self.reads += 1

    def _wrong_line(self) -> str | None:
        for line in finished(self.batch.parts).values():
            with line.part.open("rb") as opened:
                text = text_of(line, opened)
            if f'"custom_id":"c{line.number - 1}"'.encode() not in text or not json.loads(text):
                return f"{line.number}: {text[:80]!r}"
        return None

    def begun_again(self) -> int:
        """Return how often a line was begun that had been begun before."""
        if self.real:
            logs = [path.read_text(errors="replace") for path in self.root.glob("worker-*.log")]
            names = [name for log in logs for name in BEGUN.findall(log)]
        else:
            names = [name for _, _, what, name in self.noted() if what == "begun"]
        return len(names) - len(set(names))

    def answered_again(self) -> int | None:
        """Return how often a line was answered again; None: the real engine does not tell."""
        if self.real:
            return None
        names = [name for _, _, what, name in self.noted() if what == "ended"]
        return len(names) - len(set(names))

    def durable_again(self) -> int:
        """Return how many answers are in the parts of lines that another part has, too."""
        parts = [*self.batch.parts.glob(f"*{RECORDS}")]
        each = sum(len(finished(self.batch.parts, {one.name: one.stat().st_size})) for one in parts)
        return each - len(self.durable())

    def check_end(self, status: str) -> None:
        """Check that each line is once in the output or the errors."""
        shown = self.batch.shown()
        self.report.check(
            holds=shown["status"] == status,
            otherwise=f"{self.name}: the batch is {shown['status']}, not {status}",
        )
        output = [one["custom_id"] for one in content(self.root, shown["output_file_id"])]
        errors = [one["custom_id"] for one in content(self.root, shown["error_file_id"])]
        found = Counter(output + errors)
        expected = Counter(f"c{index}" for index in range(self.count))
        wrong = [*(found - expected), *(expected - found)]
        self.report.check(
            holds=not wrong,
            otherwise=f"{self.name}: {len(output)} answers and {len(errors)} errors; not once: "
            f"{', '.join(sorted(wrong)[:5])}",
        )
        counts = shown["request_counts"]
        holds = (counts["total"], counts["completed"]) == (self.count, len(output))
        self.report.check(holds=holds, otherwise=f"{self.name}: counts {counts}")

    def close(self) -> None:
        for running in self.workers.values():
            running.kill()
        self._exits.close()


@asynccontextmanager
async def lane(
    root: Path, report: Report, name: str, count: int, *, real: bool = False
) -> AsyncIterator[Lane]:
    """Make a volume, and an emulator; leaving ends the workers."""
    await asyncio.to_thread(root.mkdir, parents=True)
    options = Options(take_poll_s=1, lost_as=LostAs.REQUEUED)
    async with Emulator(options) as emulator:
        made = Lane(root, emulator, report, name, real, count)
        reading = asyncio.create_task(made.read())
        try:
            yield made
            if reading.done():
                reading.result()
        finally:
            reading.cancel()
            await asyncio.to_thread(made.close)
