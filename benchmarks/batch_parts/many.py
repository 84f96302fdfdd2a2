"""Other requests next to many batches: on a queue endpoint with one worker, and over HTTP."""

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from loop_parts.endpoint import ENGINE, Endpoint, handler_command, start_endpoint

from proof.measure.processes import Lost, next_line, run_process

ROUTE = "/v1/completions"
TOKENS, LONG_TOKENS = 4, 1_500
# Seconds before the first measurement, after the creation of the batches, and after the creation of
# batches that have no job.
WARM_UP_S, SETTLE_S, TAKE_UP_S = 3.0, 3.0, 25.0


@dataclass(frozen=True)
class Figures:
    """Milliseconds of the requests of a caller without pauses, and threads of the worker."""

    p50: float
    maximum: float
    threads: int

    def __str__(self) -> str:
        return f"p50 {self.p50:.1f}, max {self.maximum:.0f} ms, {self.threads} threads"


def input_lines(count: int) -> str:
    """Return the content of a batch's input; each line generates ``LONG_TOKENS``."""
    body = {"prompt": "Tell me.", "max_tokens": LONG_TOKENS, "ignore_eos": True}
    line = {"method": "POST", "url": ROUTE, "body": body}
    return "".join(json.dumps({**line, "custom_id": f"c{i}"}) + "\n" for i in range(count))


async def measure(call: Callable[[], Awaitable[object]], seconds: float, pid: int) -> Figures:
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        await call()
        times.append(1000 * (time.perf_counter() - start))
    return Figures(statistics.median(times), max(times), psutil.Process(pid).num_threads())


async def measure_queue(
    model: str, folder: Path, batches: int, lines: int, seconds: float, *, has_key: bool = True
) -> tuple[Figures, Figures]:
    """Return the figures of jobs alone, and next to batches.

    With a key, the worker sends the jobs that run the batches. Without it, no job runs them, and
    the worker takes them up by itself.
    """
    environ = {"MODEL_NAME": model, "BASE_PATH": str(folder)}
    if has_key:
        environ["BATCH_API_KEY"] = "local"
    async with start_endpoint(environ) as endpoint:
        pid = endpoint.processes[0].pid

        async def call() -> None:
            await endpoint.answer("Hi", TOKENS)

        content = {"purpose": "batch", "content": input_lines(lines)}
        file = await run_route(endpoint, "/v1/files", content)
        await measure(call, WARM_UP_S, pid)
        alone = await measure(call, seconds, pid)
        batch = {"input_file_id": file["id"], "endpoint": ROUTE}
        await asyncio.gather(*(run_route(endpoint, "/v1/batches", batch) for _ in range(batches)))
        await asyncio.sleep(SETTLE_S if has_key else TAKE_UP_S)
        busy = await measure(call, seconds, pid)
        batch_folder = folder / "worker" / "batches"
        leases = await asyncio.to_thread(lambda: [*batch_folder.glob("*/leases/shard-0/lease-*")])
        if not leases:
            raise Lost("no batch was running at the end")
        return alone, busy


async def run_route(endpoint: Endpoint, route: str, body: dict[str, Any]) -> dict[str, Any]:
    job = endpoint.emulator.queue.submit(
        {"input": {"route": route, "method": "POST", "body": body}}
    )
    await job.wait_for_end(60)
    if not job.output:
        raise Lost(f"{route} is {job.status}, with {job.error}")
    answer: dict[str, Any] = job.output[0]
    return answer


async def measure_server(
    model: str, folder: Path, batches: int, seconds: float
) -> tuple[Figures, Figures]:
    """Return the figures of requests to --serve alone, and next to batches of one line each."""
    async with start_server(model, folder) as (session, pid):

        async def post(route: str, body: dict[str, Any]) -> dict[str, Any]:
            async with session.post(route, json=body) as response:
                response.raise_for_status()
                answer: dict[str, Any] = await response.json()
                return answer

        short = {"prompt": "Hi", "max_tokens": TOKENS, "ignore_eos": True}

        async def call() -> None:
            await post(ROUTE, short)

        file = await post("/v1/files", {"purpose": "batch", "content": input_lines(1)})
        await measure(call, WARM_UP_S, pid)
        alone = await measure(call, seconds, pid)
        for _ in range(batches):
            await post("/v1/batches", {"input_file_id": file["id"], "endpoint": ROUTE})
        return alone, await measure(call, seconds, pid)


@asynccontextmanager
async def start_server(
    model: str, folder: Path
) -> AsyncIterator[tuple[aiohttp.ClientSession, int]]:
    command = [*handler_command(), "--serve", "--port", "0"]
    environ = {**ENGINE, "MODEL_NAME": model, "BASE_PATH": str(folder)}
    async with run_process(command, environ, merged=True) as process:
        while "running" not in (words := await next_line(process, "")):
            pass
        url = next(word for word in words if word.startswith("http://"))
        drain = asyncio.create_task(process.communicate())
        async with aiohttp.ClientSession(url) as session:
            yield session, process.pid
        drain.cancel()
