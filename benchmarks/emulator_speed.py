"""Measures the emulator's throughput, to show that it is never the bottleneck.

    python benchmarks/emulator_speed.py [--seconds 5] [--rounds 3] [--streams 32] [--slots 32]
        [--request-log PATH]

The emulator runs in its own process. The client in this file implements the worker's protocol
directly, because the SDK's loop takes only about 27 jobs per second with 30 slots. A client in
Python needs about as much CPU time as the server, so the CPU times of both are printed. The
emulator's CPU time gives its maximum throughput, independent of the machine's load. Run this with
and without --request-log to see the cost of that log. The exit status is 1 if a chunk or a job was
lost, regardless of the figures.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import aiohttp
import bench

from proof.measure.processes import Lost, cpu_s, run_process
from proof.measure.sides import EMULATOR, PYTHONPATH, read_worker_environ

STREAM_GOAL = 2_000  # POSTs per second
JOB_GOAL = 500  # jobs per second
# Seconds for requests that are in progress at the end of a round.
GRACE_S = 30.0
# The SDK posts JSON with the content type of a form.
POST_HEADERS = {"charset": "utf-8", "Content-Type": "application/x-www-form-urlencoded"}


@dataclass
class Load:
    """One round: the number of POSTs or jobs, their duration, and the CPU times of both sides."""

    count: int = 0
    seconds: float = 0.0
    emulator_s: float = 0.0
    client_s: float = 0.0


class Client:
    """A worker and its callers.

    Args:
        session: The session for all requests.
        pid: Process id of the emulator.
        urls: The variables that the emulator printed for the SDK.
    """

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
        async with self._session.post(url, data='{"input": {"prompt": "Hi"}}') as response:
            await response.read()

    async def take(self, limit: int) -> list[str]:
        url = f"{self._take}&batch_size={limit}&job_in_progress=0"
        async with self._session.get(url) as response:
            # The status is 204 at the end of a long poll.
            return [job["id"] for job in await response.json()] if response.status == 200 else []

    async def post_chunk(self, job: str, output: Any) -> None:
        await self._post(self._stream, job, output)

    async def post_done(self, job: str, output: Any) -> None:
        await self._post(self._done, job, output)

    async def _post(self, url: str, job: str, output: Any) -> None:
        url = f"{url.replace('$ID', job)}&isStream=false"
        body = json.dumps({"output": output}, ensure_ascii=False)
        async with self._session.post(url, data=body, headers=POST_HEADERS) as response:
            await response.read()

    async def read_stream(self, job: str) -> list[Any]:
        """Return all outputs of the stream of a job that has ended."""
        outputs: list[Any] = []
        while True:
            async with self._session.get(f"{self._endpoint}/stream/{job}") as response:
                chunks = (await response.json())["stream"]
            if not chunks:
                return outputs
            outputs += [chunk["output"] for chunk in chunks]

    async def job_counts(self) -> dict[str, int]:
        async with self._session.get(f"{self._endpoint}/health") as response:
            counts: dict[str, int] = (await response.json())["jobs"]
            return counts

    @contextmanager
    def measure(self) -> Iterator[Load]:
        """Measure the times of the block; the block itself sets the count."""
        load = Load()
        start, emulator_start_s, client_start_s = (
            time.monotonic(),
            cpu_s(self._pid),
            time.process_time(),
        )
        yield load
        load.seconds = time.monotonic() - start
        load.emulator_s = cpu_s(self._pid) - emulator_start_s
        load.client_s = time.process_time() - client_start_s


async def measure_stream_posts(client: Client, streams: int, seconds: float) -> Load:
    """Let many jobs stream concurrently, each with one POST at a time.

    Raises:
        Lost: If a job's stream lacks a chunk, or has them in another order.
    """
    for _ in range(streams):
        await client.run()
    jobs: list[str] = []
    async with asyncio.timeout(GRACE_S):
        while len(jobs) < streams:
            jobs += await client.take(streams - len(jobs))
    sent: dict[str, list[Any]] = {job: [] for job in jobs}
    with client.measure() as load:
        end = time.monotonic() + seconds

        async def stream(job: str) -> None:
            while time.monotonic() < end:
                number = len(sent[job])
                # The number shows missing or misplaced chunks.
                output = {
                    "choices": [{"tokens": [f" token {number} of {job}"]}],
                    "usage": {"input": 5, "output": number},
                }
                await client.post_chunk(job, output)
                sent[job].append(output)

        async with asyncio.timeout(seconds + GRACE_S), asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(stream(job))
        load.count = sum(map(len, sent.values()))
    for job, outputs in sent.items():
        await client.post_done(job, [])
        if (received := await client.read_stream(job)) != outputs:
            raise Lost(f"of {len(outputs)} chunks /stream gave {len(received)}, or not in order")
    return load


async def measure_jobs(client: Client, slots: int, seconds: float) -> Load:
    """Let callers submit jobs and a worker complete them, up to `slots` jobs at a time.

    Raises:
        Lost: If /health does not count each job as completed.
    """
    before = await client.job_counts()
    # The semaphore limits the queue, so that this measures complete jobs and not the queue's
    # growth.
    free_slots = asyncio.Semaphore(slots)
    with client.measure() as load:
        end = time.monotonic() + seconds

        async def call() -> None:
            while time.monotonic() < end:
                await free_slots.acquire()
                await client.run()
                load.count += 1

        async def finish(job: str) -> None:
            await client.post_done(job, {"text": "Hello"})
            free_slots.release()

        async with asyncio.timeout(seconds + GRACE_S), asyncio.TaskGroup() as group:

            async def work() -> None:
                while True:
                    for job in await client.take(slots):
                        group.create_task(finish(job))

            worker = group.create_task(work())
            await asyncio.wait([group.create_task(call()) for _ in range(slots)])
            for _ in range(slots):
                await free_slots.acquire()  # until no job is in progress
            worker.cancel()
    expected = {**before, "completed": before["completed"] + load.count}
    if (counts := await client.job_counts()) != expected:
        raise Lost(f"{load.count} jobs were submitted: /health says {counts}, not {expected}")
    return load


def format_figures(name: str, rounds: Sequence[Load], goal: int) -> str:
    rate = median(load.count / load.seconds for load in rounds)
    emulator_ms = median(1000 * load.emulator_s / load.count for load in rounds)
    client_ms = median(1000 * load.client_s / load.count for load in rounds)
    return (
        f"{name}: {rate:,.0f}/s (goal {goal:,}); emulator used {emulator_ms:.3f} ms of CPU each, "
        f"so its ceiling is {1000 / emulator_ms:,.0f}/s; this client {client_ms:.3f} ms"
    )


async def main(args: argparse.Namespace) -> None:
    posts, jobs = [], []
    print(bench.machine(), flush=True)
    command = [*EMULATOR, "--port", "0"]
    if args.request_log:
        command += ["--request-log", str(args.request_log)]
    # An emulator without workers, and without an API key, even if this shell has one.
    async with run_process(command, {**PYTHONPATH, "EMULATOR_API_KEY": ""}) as process:
        variables = await read_worker_environ(process)
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            headers={"Authorization": variables["RUNPOD_AI_API_KEY"]},
            raise_for_status=True,
        ) as session:
            client = Client(session, process.pid, variables)
            for _ in range(args.rounds):
                posts.append(await measure_stream_posts(client, args.streams, args.seconds))
                jobs.append(await measure_jobs(client, args.slots, args.seconds))
    print(format_figures("stream POSTs", posts, STREAM_GOAL))
    print(format_figures("jobs", jobs, JOB_GOAL))
    print(
        f"nothing lost: {sum(load.count for load in posts):,} chunks read back in order, "
        f"{sum(load.count for load in jobs):,} jobs completed (medians of {args.rounds} rounds)"
    )


if __name__ == "__main__":
    parser = bench.options(__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each half of a round")
    parser.add_argument("--streams", type=int, default=32, help="number of concurrent streams")
    parser.add_argument("--slots", type=int, default=32, help="number of concurrent jobs")
    parser.add_argument(
        "--request-log", type=bench.path, metavar="PATH", help="request log of the emulator"
    )
    try:
        asyncio.run(main(parser.parse_args()))
    except TimeoutError:
        sys.exit("lost: a request or a job did not end")
    except Lost as lost:
        sys.exit(f"lost: {lost}")
