"""One batch on one volume, the workers that run it, and a reader that looks at it all the time."""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import ROOT
from support.batches import as_text, content, lines
from support.engine.scripted import CHAT, settings
from support.processes.background import Background
from support.processes.commands import HOME, SCRIPT, WORKER

from chaos.long_work.crew import Crew, crew
from chaos.report import Report
from emulator import Job
from worker.batches.parts import finished, text_of
from worker.batches.record import Batch
from worker.batches.store import Batches

ANSWERING = Path(__file__).parents[1] / "workers" / "answering.py"
INPUT = "inbox/in.jsonl"
READ_S = 0.2
# Of a line of the real engine's.
LONG = {"max_tokens": 48, "ignore_eos": True}


@dataclass
class Lane(Crew):
    """One batch.

    Args:
        count: lines of it.
        real: whether its workers have the real engine.
    """

    count: int = 0
    real: bool = False
    # After each death: lines that had been answered and were not durable, and the oldest one's age.
    lost: list[int] = field(default_factory=list)
    oldest_s: list[float] = field(default_factory=list)

    @property
    def notes(self) -> Path:
        return self.root / "notes"

    def batches(self) -> list[Batch]:
        return Batches(settings(FILES_PATH=str(self.root))).all()

    @property
    def batch(self) -> Batch:
        (found,) = self.batches()
        return found

    def write_input(self, jobs: int = 1) -> dict[str, Any]:
        """Write the input, and return that of the job that runs it, which so many may share."""
        body = LONG if self.real else {}
        made = [{**one, "body": {**one["body"], **body}} for one in lines(self.count)]
        (self.root / "inbox").mkdir(exist_ok=True)
        (self.root / INPUT).write_bytes(as_text(made))
        return {"batch": {"input_path": INPUT, "endpoint": CHAT, "data_parallelism": jobs}}

    def go_on(self) -> Job:
        """Submit a further job that runs the batch."""
        return self.send({"batch": {"id": self.batch.id}})

    def start(self) -> str:
        if self.real:
            # One job, so that a worker that is about to go does not take the one for the next.
            environ = {**WORKER, "FILES_PATH": str(self.root), "MAX_CONCURRENCY": "1"}
            return self.begin_worker([SCRIPT], environ)
        environ = {**HOME, "PYTHONPATH": f"{ROOT}/src:{ROOT}/tests", "RUNPOD_LOG_LEVEL": "INFO"}
        environ |= {"RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true", "RUNPOD_SKIP_GPU_CHECK": "true"}
        command = [sys.executable, "-u", str(ANSWERING), str(self.root), str(self.notes)]
        return self.begin_worker(command, environ)

    async def kill(self, name: str) -> Background:
        """Kill a worker, and note what it takes with it."""
        killed = await super().kill(name)
        if not self.real:
            pid = str(killed.process.pid)
            answered = {line: at for at, by, line in self.answered() if by == pid}
            durable = {f"c{number - 1}" for number in self.durable()}
            lost = [at for line, at in answered.items() if line not in durable]
            last = max(answered.values(), default=0)
            self.lost.append(len(lost))
            self.oldest_s.append(last - min(lost, default=last))
        return killed

    def answered(self) -> list[tuple[float, str, str]]:
        """Return what the scripted engines noted: when, by which process, and the line."""
        text = self.notes.read_text() if self.notes.exists() else ""
        words = [one.split() for one in text.splitlines() if not one.endswith(" -")]
        return [(float(at), pid, name) for at, pid, name in words]

    def durable(self) -> set[int]:
        return set(finished(self.batch.parts))

    def parts(self) -> set[str]:
        """Return the parts that have lines."""
        return {path.name for path in self.batch.parts.glob("*.records") if path.stat().st_size}

    async def progress(self, more: int = 1) -> None:
        """Wait until so many further lines are durable, or the batch has ended."""
        await self.until(self.batches, "there is no batch")
        wanted = len(self.durable()) + more
        await self.until(
            lambda: len(self.durable()) >= wanted or self.batch.ended(), f"{wanted} lines never are"
        )

    @asynccontextmanager
    async def takeover(self) -> AsyncIterator[None]:
        """Wait, after the block, until another attempt has durable lines; note how long it took."""
        before, since = self.parts(), time.monotonic()
        yield
        if self.batch.ended():
            self.check(False, "ended before its disturbance")
            return
        await self.until(
            lambda: self.parts() - before or self.batch.ended(), "nobody has taken over"
        )
        self.takeovers_s.append(time.monotonic() - since)

    async def read(self) -> None:
        """Look at the batch until this is cancelled: nothing falls, nothing is half a line."""
        done = completed = 0
        while True:
            await asyncio.sleep(READ_S)
            if not self.batches():
                continue
            counts = (await asyncio.to_thread(self.batch.snapshot)).counts
            now = counts.completed + counts.failed
            falls = now < done or counts.completed < completed
            self.check(not falls, f"{done} falls to {now}")
            done, completed = max(done, now), max(completed, counts.completed)
            wrong = await asyncio.to_thread(self._wrong_line)
            self.check(not wrong, f"a wrong line: {wrong}")

    def _wrong_line(self) -> str | None:
        for line in finished(self.batch.parts).values():
            with line.part.open("rb") as opened:
                text = text_of(line, opened)
            if f'"custom_id":"c{line.number - 1}"'.encode() not in text or not json.loads(text):
                return f"{line.number}: {text[:80]!r}"
        return None

    def check_end(self, status: str) -> None:
        """Check that each line is once in the output or the errors."""
        now = self.batch.snapshot()
        counts = now.counts
        self.check(now.status == status, f"{now.status}, not {status}")
        output = [one["custom_id"] for one in content(self.root, counts.output_file_id)]
        errors = [one["custom_id"] for one in content(self.root, counts.error_file_id)]
        found = Counter(output + errors)
        expected = Counter(f"c{index}" for index in range(self.count))
        wrong = sorted([*(found - expected), *(expected - found)])
        self.check(
            not wrong, f"{len(output)} answers and {len(errors)} errors; not once: {wrong[:5]}"
        )
        holds = (counts.total, counts.completed) == (self.count, len(output))
        self.check(holds, f"counts {counts}")


@asynccontextmanager
async def lane(root: Path, report: Report, count: int, *, real: bool) -> AsyncIterator[Lane]:
    """Make a volume, and an emulator; leaving ends the workers."""
    async with crew(Lane, root, report, count=count, real=real) as made:
        reading = asyncio.create_task(made.read())
        try:
            yield made
            if reading.done():
                reading.result()
        finally:
            reading.cancel()
