"""One batch on one volume, its workers, and a reader that continuously checks its progress."""

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
from support.batches import file_lines, lines, to_jsonl
from support.engine.scripted import CHAT, settings
from support.processes.background import BackgroundProcess
from support.processes.commands import HOME, SCRIPT, WORKER
from support.volume import all_records

from chaos.long_work.crew import Crew, open_crew
from chaos.report import Report
from emulator import LostJobHandling
from worker.batches.parts import open_results, read_finished_lines
from worker.batches.record import Batch, Batches

BATCH_WORKER = Path(__file__).parents[1] / "workers" / "batch_worker.py"
INPUT = "inbox/in.jsonl"
POLL_S = 0.2
# Parameters of a line for the real engine.
LONG_PARAMS = {"max_tokens": 48, "ignore_eos": True}


@dataclass
class Lane(Crew):
    """A volume with one batch and its workers.

    Args:
        count: Number of lines of the batch.
        real_engine: Whether the workers run the real engine.
    """

    count: int = 0
    real_engine: bool = False
    # For each death: the number of answered lines that were not durable, and the age of the oldest
    # one.
    lost_lines: list[int] = field(default_factory=list)
    oldest_lost_s: list[float] = field(default_factory=list)

    @property
    def notes(self) -> Path:
        return self.root / "notes"

    def batches(self) -> list[Batch]:
        return all_records(Batches(settings(FILES_PATH=str(self.root))))

    @property
    def batch(self) -> Batch:
        (found,) = self.batches()
        return found

    def write_input(self, jobs: int = 1) -> dict[str, Any]:
        """Write the input file; return the input of the job for the batch, with ``jobs`` shards."""
        body = LONG_PARAMS if self.real_engine else {}
        requests = [{**one, "body": {**one["body"], **body}} for one in lines(self.count)]
        (self.root / "inbox").mkdir(exist_ok=True)
        (self.root / INPUT).write_bytes(to_jsonl(requests))
        return {"batch": {"input_path": INPUT, "endpoint": CHAT, "data_parallelism": jobs}}

    async def wait_for_end(self) -> None:
        """Wait until the batch has ended."""
        await self.wait_until(self.batch.has_ended, "it does not end")

    def start(self) -> str:
        if self.real_engine:
            # With one slot, a worker that is about to exit can't take the job for the next worker.
            environ = {**WORKER, "FILES_PATH": str(self.root), "MAX_CONCURRENCY": "1"}
            return self.begin_worker([SCRIPT], environ)
        environ = {**HOME, "PYTHONPATH": f"{ROOT}/src:{ROOT}/tests", "RUNPOD_LOG_LEVEL": "INFO"}
        environ |= {"RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true", "RUNPOD_SKIP_GPU_CHECK": "true"}
        command = [sys.executable, "-u", str(BATCH_WORKER), str(self.root), str(self.notes)]
        return self.begin_worker(command, environ)

    async def kill(self, name: str) -> BackgroundProcess:
        """Kill a worker and record the lines that were lost with it."""
        killed = await super().kill(name)
        if not self.real_engine:
            pid = str(killed.process.pid)
            answered = {line: at for at, by, line in self.answered_lines() if by == pid}
            durable = {f"c{number - 1}" for number in self.durable_lines()}
            lost = [at for line, at in answered.items() if line not in durable]
            last = max(answered.values(), default=0)
            self.lost_lines.append(len(lost))
            self.oldest_lost_s.append(last - min(lost, default=last))
        return killed

    def answered_lines(self) -> list[tuple[float, str, str]]:
        """Return the notes of the scripted engines: time, process id and line name."""
        text = self.notes.read_text() if self.notes.exists() else ""
        words = [one.split() for one in text.splitlines() if not one.endswith(" -")]
        return [(float(at), pid, name) for at, pid, name in words]

    def durable_lines(self) -> set[int]:
        return set(read_finished_lines(self.batch.parts_directory))

    async def wait_for_progress(self, more: int = 1) -> None:
        """Wait until ``more`` lines have become durable or the batch has ended."""
        await self.wait_until(self.batches, "there is no batch")
        wanted = len(self.durable_lines()) + more
        await self.wait_until(
            lambda: len(self.durable_lines()) >= wanted or self.batch.has_ended(),
            f"{wanted} lines never are",
        )

    @asynccontextmanager
    async def measure_takeover(self) -> AsyncIterator[None]:
        """After the block, measure the time until another worker has durable lines."""
        before, since = nonempty_parts(self.batch), time.monotonic()
        yield
        if self.batch.has_ended():
            self.check(False, "ended before its disturbance")
            return
        await self.wait_until(
            lambda: nonempty_parts(self.batch) - before or self.batch.has_ended(),
            "nobody has taken over",
        )
        self.takeovers_s.append(time.monotonic() - since)

    async def watch(self) -> None:
        """Check until cancelled that the counts never decrease and no line is incomplete."""
        done = completed = 0
        while True:
            await asyncio.sleep(POLL_S)
            if not self.batches():
                continue
            counts = (await asyncio.to_thread(self.batch.snapshot)).counts
            now = counts.finished
            falls = now < done or counts.completed < completed
            self.check(not falls, f"{done} falls to {now}")
            done, completed = max(done, now), max(completed, counts.completed)
            wrong = await asyncio.to_thread(self._find_wrong_line)
            self.check(not wrong, f"a wrong line: {wrong}")

    def _find_wrong_line(self) -> str | None:
        found = read_finished_lines(self.batch.parts_directory).values()
        with open_results(found) as read_result:
            for line in found:
                text = read_result(line)
                if json.loads(text)["custom_id"] != f"c{line.number - 1}":
                    return f"{line.number}: {text[:80]!r}"
        return None

    def check_end(self, status: str) -> None:
        """Check that each line appears exactly once in the output or the errors."""
        now = self.batch.snapshot()
        self.check(now.status == status, f"{now.status}, not {status}")
        output = [one["custom_id"] for one in file_lines(self.root, now.output_file_id)]
        errors = [one["custom_id"] for one in file_lines(self.root, now.error_file_id)]
        found = Counter(output + errors)
        expected = Counter(f"c{index}" for index in range(self.count))
        wrong = sorted([*(found - expected), *(expected - found)])
        self.check(
            not wrong, f"{len(output)} answers and {len(errors)} errors; not once: {wrong[:5]}"
        )
        is_ok = (now.total, now.counts.completed) == (self.count, len(output))
        self.check(is_ok, f"{now.total} lines, {now.counts}")


def nonempty_parts(batch: Batch) -> set[str]:
    """Return the names of the parts that have lines."""
    return {path.name for path in batch.parts_directory.glob("*.jsonl") if path.stat().st_size}


@asynccontextmanager
async def open_lane(
    root: Path, report: Report, lost_as: LostJobHandling, count: int, *, real_engine: bool
) -> AsyncIterator[Lane]:
    """Create a volume and an emulator; on exit, stop the workers."""
    async with open_crew(Lane, root, report, lost_as, count=count, real_engine=real_engine) as lane:
        reading = asyncio.create_task(lane.watch())
        try:
            yield lane
            if reading.done():
                reading.result()
        finally:
            reading.cancel()
