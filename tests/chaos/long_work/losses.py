"""Batches whose worker goes while no caller asks: which worker or job takes each of them up.

``--docs`` writes the table in docs/long-work.md.
"""

import asyncio
import shutil
import signal
import sys
import time
from argparse import Namespace
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import httpx2
from openai import OpenAI
from support import ROOT
from support.batches import file_lines, lines, to_jsonl
from support.engine.scripted import settings
from support.processes.background import HUNG_S
from support.processes.commands import SCRIPT, WORKER
from support.volume import all_records

from chaos.long_work.crew import Stuck, make_empty_folder
from chaos.long_work.lane import nonempty_parts
from chaos.report import Report, percentile, print_line
from emulator import Emulator, Job, LostJobHandling, Options, Status
from emulator.fleet import Fleet
from llm_worker_client import RunpodTransport
from worker.batches.record import Batch, Batches

LINES, STOPPED_AT = 1_500, 500
BODY = {"max_tokens": 12, "temperature": 0}
# Cells that run concurrently; each has an engine.
CONCURRENT_CELLS = 2
POLL_S = 0.1
IDLE_TIMEOUT_S = 5.0
# Seconds in which a batch stays as it is, if the endpoint is scaled to zero and no caller asks.
QUIET_S = 30.0
KEY = {"BATCH_API_KEY": "any"}
SIGTERM, SIGKILL = "SIGTERM", "SIGKILL"
TO_ZERO = "scaled to zero"
PAGE = ROOT / "docs" / "long-work.md"
# The beginning of the table in the page, and the end.
HEAD = """\
| the worker goes by | `BATCH_API_KEY` | taken up by, if its job fails | if its job is requeued |
| --- | --- | --- | --- |
"""
END = "\n"


@dataclass
class Loss:
    """A cell of the table: a loss of a batch's only worker, and its outcome.

    Args:
        way: ``SIGTERM``, ``SIGKILL``, or ``TO_ZERO``: SIGTERM without another start until a job
            waits.
        lost_as: How the emulator handles a job whose worker exited.
        has_key: Whether the worker can send jobs.
    """

    way: str
    lost_as: LostJobHandling
    has_key: bool
    taken_up_by: str = "nobody"
    takeover_s: float = 0.0

    @property
    def outcome(self) -> str:
        return f"{self.taken_up_by}, {self.takeover_s:.0f} s"

    def __str__(self) -> str:
        return f"{self.way}, {self.lost_as}, {'a key' if self.has_key else 'no key'}"


class Endpoint:
    """An endpoint with one batch, whose worker a scenario stops."""

    def __init__(self, loss: Loss, folder: Path, volume: Path, emulator: Emulator) -> None:
        self.loss, self.folder, self.volume, self.emulator = loss, folder, volume, emulator
        transport = RunpodTransport("local", "any", emulator.api_url)
        self.client = OpenAI(
            api_key="-", base_url="http://local/v1", http_client=httpx2.Client(transport=transport)
        )

    async def create_batch(self) -> Batch:
        """Create the batch as a caller does, and wait until some of its lines are durable."""
        content = to_jsonl(lines(LINES, messages=[{"role": "user", "content": "Hi"}], **BODY))
        files, batches = self.client.files, self.client.batches
        file = await asyncio.to_thread(files.create, file=("in.jsonl", content), purpose="batch")
        await asyncio.to_thread(
            batches.create,
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
        )
        (batch,) = all_records(Batches(settings(FILES_PATH=str(self.volume))))
        await self.wait_for_lines(batch, STOPPED_AT)
        return batch

    async def wait_for_lines(self, batch: Batch, count: int) -> None:
        deadline = time.monotonic() + HUNG_S
        while (await asyncio.to_thread(batch.counts)).completed < count:
            if time.monotonic() > deadline:
                raise Stuck(f"{self.loss}: less than {count} lines")
            await asyncio.sleep(POLL_S)

    def running_jobs(self) -> list[Job]:
        """Return the jobs for batches that a worker has."""
        jobs = self.emulator.queue.jobs.values()
        return [job for job in jobs if job.status is Status.IN_PROGRESS and "batch" in job.input]

    def find_runner(self, first_jobs: list[Job], log: str) -> str:
        """Return which worker or job has taken the batch up, after the jobs that ran it first."""
        jobs = self.running_jobs()
        if not jobs:
            return "the next worker"
        if jobs[0] in first_jobs:
            return "the same job, delivered again"
        if "max_runtime_sec" not in jobs[0].input["batch"]:
            return "the caller's next request"
        is_of_next = "in a job that was sent now" in log
        return f"a job of the {'next' if is_of_next else 'stopped'} worker"

    async def measure_takeover(self, batch: Batch) -> None:
        """Stop the batch's worker; wait until another one adds lines."""
        loss, first_jobs = self.loss, self.running_jobs()
        parts, since = nonempty_parts(batch), time.monotonic()
        process = self.emulator.queue.get_worker("worker-1").process
        assert process
        process.send_signal(signal.SIGKILL if loss.way == SIGKILL else signal.SIGTERM)
        if loss.way == TO_ZERO and not loss.has_key:
            await asyncio.sleep(QUIET_S)
            since = time.monotonic()
            await asyncio.to_thread(self.client.batches.retrieve, batch.id)
        deadline = time.monotonic() + HUNG_S
        while not nonempty_parts(batch) - parts:
            if time.monotonic() > deadline:
                raise Stuck(f"{loss}: no worker takes it up")
            await asyncio.sleep(POLL_S)
        loss.takeover_s = time.monotonic() - since
        loss.taken_up_by = self.find_runner(first_jobs, self.log)

    @property
    def log(self) -> str:
        return (self.folder / "logs" / "worker-1.log").read_text()


async def run_cell(loss: Loss, folder: Path, report: Report) -> None:
    """Run a batch, stop its worker, and wait for the end of the batch."""
    volume = folder / "volume"
    volume.mkdir(parents=True)
    environ = {**WORKER, "BASE_PATH": str(volume), **(KEY if loss.has_key else {})}
    timeout_s = IDLE_TIMEOUT_S if loss.way == TO_ZERO else None
    options = Options(lost_as=loss.lost_as, idle_timeout_s=timeout_s)
    command = [sys.executable, "-u", str(ROOT / SCRIPT)]
    logs = folder / "logs"
    logs.mkdir()
    async with (
        Emulator(options) as emulator,
        Fleet(emulator, command, environ, logs, lambda _: None) as fleet,
    ):
        fleet.start_workers(1)
        endpoint = Endpoint(loss, folder, volume, emulator)
        try:
            batch = await endpoint.create_batch()
            await endpoint.measure_takeover(batch)
            await endpoint.wait_for_lines(batch, LINES)
        except Stuck as stuck:
            report.check(False, str(stuck))
            return
        deadline = time.monotonic() + HUNG_S
        while not batch.has_ended() and time.monotonic() < deadline:
            await asyncio.sleep(POLL_S)
    now = batch.snapshot()
    found = Counter(one["custom_id"] for one in file_lines(volume, now.output_file_id))
    is_whole = found == Counter(f"c{index}" for index in range(LINES))
    report.check(is_whole and batch.has_ended(), f"{loss}: {len(found)} lines, {now.counts}")
    print_line(f"  {loss}: {loss.taken_up_by}, {loss.takeover_s:.1f} s")


def make_rows(losses: list[Loss]) -> str:
    """Return the rows of the table: a way and a key each, with an outcome for each handling."""
    outcomes = defaultdict[tuple[str, str], list[str]](list)
    for loss in losses:
        outcomes[loss.way, "set" if loss.has_key else "not set"].append(loss.outcome)
    return "".join(f"| {' | '.join((*words, *found))} |\n" for words, found in outcomes.items())


async def run(args: Namespace) -> Report:
    """Run all cells; with ``--docs``, write the table into the page."""
    folder = make_empty_folder(args.logs / "losses")
    handlings = (LostJobHandling.FAILED, LostJobHandling.REQUEUED)
    cells = product((SIGTERM, SIGKILL, TO_ZERO), handlings, (False, True))
    losses = [Loss(*cell) for cell in cells]
    report = Report(f"losses, {len(losses)} cells of {LINES:,} lines")
    slots = asyncio.Semaphore(CONCURRENT_CELLS)

    async def run_in_slot(number: int, loss: Loss) -> None:
        async with slots:
            await run_cell(loss, folder / str(number), report)

    await asyncio.gather(*(run_in_slot(*pair) for pair in enumerate(losses)))
    seconds = [loss.takeover_s for loss in losses]
    report.figures.append(
        f"taken up after p50 {percentile(seconds, 0.5):.0f} s, max {max(seconds):.0f}"
    )
    if args.docs and report.is_good:
        before, _, rest = PAGE.read_text().partition(HEAD)
        PAGE.write_text(f"{before}{HEAD}{make_rows(losses)}{rest[rest.index(END) :]}")
    shutil.rmtree(folder, ignore_errors=True)
    return report
