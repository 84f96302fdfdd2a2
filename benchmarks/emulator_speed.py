"""Measures what the emulator carries, to show that it is never the bottleneck.

    python benchmarks/emulator_speed.py [--seconds 5] [--rounds 3] [--streams 32] [--slots 32]
        [--request-log PATH]

The emulator runs in a process of its own. The client here speaks the worker's protocol directly,
since the SDK's own loop takes no more than some 27 jobs a second with 30 slots. A client in Python
costs about as much as the server, so the CPU time of both is told: the emulator's gives its
ceiling, whatever the machine and its load. Run it with and without --request-log for that log's
cost. Exits with 1 if a chunk or a job was lost; no figure makes it fail. Needs Linux (/proc).
"""

import argparse
import asyncio
import json
import os
import shlex
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

ROOT = Path(__file__).parents[1]
STREAM_GOAL = 2_000
JOB_GOAL = 500
# How long what is under way when a round's time is up may still take.
GRACE_S = 30.0
# As the SDK posts: JSON text under a form's content type.
POST_HEADERS = {"charset": "utf-8", "Content-Type": "application/x-www-form-urlencoded"}


class Lost(Exception):
    """Something that was handed in did not come out as it should."""


@dataclass
class Measured:
    """A round's figures: how many, in how long, and the CPU time it took on either side."""

    count: int = 0
    seconds: float = 0.0
    emulator_cpu_s: float = 0.0
    client_cpu_s: float = 0.0

    @property
    def rate(self) -> float:
        return self.count / self.seconds

    @property
    def emulator_ms(self) -> float:
        return 1000 * self.emulator_cpu_s / self.count

    @property
    def client_ms(self) -> float:
        return 1000 * self.client_cpu_s / self.count


class Client:
    """A worker and its callers, on the URLs that the emulator printed for the SDK."""

    def __init__(self, session: aiohttp.ClientSession, pid: int, urls: dict[str, str]) -> None:
        self._session = session
        self._pid = pid
        take = urls["RUNPOD_WEBHOOK_GET_JOB"].replace("$ID", "bench")
        self._endpoint = take.partition("/job-take/")[0]
        self._take = take.replace("/job-take/", "/job-take-batch/")
        self._stream = urls["RUNPOD_WEBHOOK_POST_STREAM"].replace("$RUNPOD_POD_ID", "bench")
        self._done = urls["RUNPOD_WEBHOOK_POST_OUTPUT"].replace("$RUNPOD_POD_ID", "bench")

    async def run(self) -> None:
        url = f"{self._endpoint}/run"
        async with self._session.post(url, data='{"input": {"prompt": "Hi"}}') as answer:
            await answer.read()

    async def take(self, limit: int) -> list[str]:
        url = f"{self._take}&batch_size={limit}&job_in_progress=0"
        async with self._session.get(url) as answer:
            # 204 where the poll is over.
            return [job["id"] for job in await answer.json()] if answer.status == 200 else []

    async def post_chunk(self, job: str, output: Any) -> None:
        await self._post(self._stream.replace("$ID", job) + "&isStream=false", output)

    async def post_done(self, job: str, output: Any) -> None:
        await self._post(self._done.replace("$ID", job) + "&isStream=false", output)

    async def _post(self, url: str, output: Any) -> None:
        body = json.dumps({"output": output}, ensure_ascii=False)
        async with self._session.post(url, data=body, headers=POST_HEADERS) as answer:
            await answer.read()

    async def read_stream(self, job: str) -> list[Any]:
        """Everything an ended job streamed, however many reads that takes."""
        outputs: list[Any] = []
        while True:
            async with self._session.get(f"{self._endpoint}/stream/{job}") as answer:
                chunks = (await answer.json())["stream"]
            if not chunks:
                return outputs
            outputs += [chunk["output"] for chunk in chunks]

    async def job_counts(self) -> dict[str, int]:
        async with self._session.get(f"{self._endpoint}/health") as answer:
            counts: dict[str, int] = (await answer.json())["jobs"]
            return counts

    @contextmanager
    def measured(self) -> Iterator[Measured]:
        measured = Measured()
        begun, emulator_cpu_s, own_cpu_s = self._clocks()
        yield measured
        ended, emulator_then_s, own_then_s = self._clocks()
        measured.seconds = ended - begun
        measured.emulator_cpu_s = emulator_then_s - emulator_cpu_s
        measured.client_cpu_s = own_then_s - own_cpu_s

    def _clocks(self) -> tuple[float, float, float]:
        return time.monotonic(), cpu_seconds(self._pid), time.process_time()


def cpu_seconds(pid: int) -> float:
    # The process's name, in parentheses, may hold spaces: count from behind it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system = fields[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def emulator(request_log: str | None) -> AsyncIterator[Client]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "emulator", "--port", "0"),
        *(("--request-log", request_log) if request_log else ()),
        # Without a key of the callers': what is measured does not depend on this shell.
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "EMULATOR_API_KEY": ""},
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        environ = await printed_environ(process)
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            headers={"Authorization": environ["RUNPOD_AI_API_KEY"]},
            raise_for_status=True,
        ) as session:
            yield Client(session, process.pid, environ)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()


async def printed_environ(process: asyncio.subprocess.Process) -> dict[str, str]:
    """The variables of the banner, as a shell would read them."""
    needed = {f"RUNPOD_WEBHOOK_{kind}" for kind in ("GET_JOB", "POST_STREAM", "POST_OUTPUT")}
    needed.add("RUNPOD_AI_API_KEY")
    environ: dict[str, str] = {}
    assert process.stdout is not None
    async for line in process.stdout:
        # Split only where it is a shell's line: the others are prose, with apostrophes.
        if line.startswith(b"export "):
            name, _, value = shlex.split(line.decode())[1].partition("=")
            environ[name] = value
        if needed <= environ.keys():
            return environ
    raise RuntimeError("the emulator ended before it told its URLs")


async def stream_posts(client: Client, streams: int, seconds: float) -> Measured:
    """Let many jobs stream at once, each awaiting every POST before the next."""
    for _ in range(streams):
        await client.run()
    jobs: list[str] = []
    async with asyncio.timeout(GRACE_S):
        while len(jobs) < streams:
            jobs += await client.take(streams - len(jobs))
    sent: dict[str, list[Any]] = {job: [] for job in jobs}
    with client.measured() as measured:
        end = time.monotonic() + seconds

        async def stream(job: str) -> None:
            while time.monotonic() < end:
                number = len(sent[job])
                # Numbered, so that what is missing or out of place shows.
                output = {
                    "choices": [{"tokens": [f" token {number} of {job}"]}],
                    "usage": {"input": 5, "output": number},
                }
                await client.post_chunk(job, output)
                sent[job].append(output)

        async with asyncio.timeout(seconds + GRACE_S), asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(stream(job))
        measured.count = sum(map(len, sent.values()))
    for job, outputs in sent.items():
        await client.post_done(job, [])
        if (given := await client.read_stream(job)) != outputs:
            raise Lost(f"of {len(outputs)} chunks /stream gave {len(given)}, or not in order")
    return measured


async def whole_jobs(client: Client, slots: int, seconds: float) -> Measured:
    before = await client.job_counts()
    measured = await turn_over(client, slots, seconds)
    wanted = {**before, "completed": before["completed"] + measured.count}
    if (counts := await client.job_counts()) != wanted:
        raise Lost(f"{measured.count} jobs were handed in: /health says {counts}, not {wanted}")
    return measured


async def turn_over(client: Client, slots: int, seconds: float) -> Measured:
    """Let callers hand in jobs and a worker take and end them, so many under way at a time."""
    # Bounded, so that whole jobs are measured and not how fast a queue grows.
    free = asyncio.Semaphore(slots)
    with client.measured() as measured:
        end = time.monotonic() + seconds

        async def call() -> None:
            while time.monotonic() < end:
                await free.acquire()
                await client.run()
                measured.count += 1

        async def finish(job: str) -> None:
            await client.post_done(job, {"text": "Hello"})
            free.release()

        async with asyncio.timeout(seconds + GRACE_S), asyncio.TaskGroup() as group:

            async def work() -> None:
                while True:
                    for job in await client.take(slots):
                        group.create_task(finish(job))

            worker = group.create_task(work())
            await asyncio.wait([group.create_task(call()) for _ in range(slots)])
            for _ in range(slots):
                await free.acquire()  # until no job is under way
            worker.cancel()
    return measured


def figures(name: str, rounds: list[Measured], goal: int) -> str:
    rate = statistics.median(one.rate for one in rounds)
    emulator_ms = statistics.median(one.emulator_ms for one in rounds)
    client_ms = statistics.median(one.client_ms for one in rounds)
    return (
        f"{name}: {rate:,.0f}/s (goal {goal:,}); emulator used {emulator_ms:.3f} ms of CPU each, "
        f"so its ceiling is {1000 / emulator_ms:,.0f}/s; this client {client_ms:.3f} ms"
    )


async def main(given: argparse.Namespace) -> None:
    posts, jobs = [], []
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before", flush=True)
    async with emulator(given.request_log) as client:
        for _ in range(given.rounds):
            posts.append(await stream_posts(client, given.streams, given.seconds))
            jobs.append(await whole_jobs(client, given.slots, given.seconds))
    print(figures("stream POSTs", posts, STREAM_GOAL))
    print(figures("jobs", jobs, JOB_GOAL))
    print(
        f"nothing lost: {sum(one.count for one in posts):,} chunks read back in order, "
        f"{sum(one.count for one in jobs):,} jobs completed (medians of {given.rounds} rounds)"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each half of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=32, help="jobs that stream at once")
    parser.add_argument("--slots", type=int, default=32, help="jobs under way at once")
    parser.add_argument("--request-log", metavar="PATH", help="have the emulator write it")
    try:
        asyncio.run(main(parser.parse_args()))
    except TimeoutError:
        sys.exit("lost: what was under way did not end")
    except Lost as lost:
        sys.exit(f"lost: {lost}")
