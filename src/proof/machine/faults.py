"""Faults under load: a cancelled request, and a killed engine core."""

import asyncio
import re
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import psutil

from proof.measure import http_load
from proof.measure.comparison import Round
from proof.measure.figures import Load
from proof.measure.processes import Lost
from proof.measure.sides import NAME, HttpSide, WorkerSide

NO_TIMEOUT = aiohttp.ClientTimeout(total=None)
CANCELS = 5
CALLERS = 16
RUNNING = re.compile(rb"^vllm:num_requests_running\{[^}]*\} ([0-9.]+)", re.MULTILINE)
# Maximum seconds until the metrics show a number of running requests.
RUNNING_S = 60.0
# Maximum seconds until the engine answers after the core's death; the server does not come back.
RECOVERY_S = 300.0


async def measure_cancel(side: HttpSide, tokens: int) -> Round:
    """Return the milliseconds from a cancel until the engine's metrics show its slot as free.

    The engine updates its metrics with each step, so another request must be running.

    Args:
        side: The side.
        tokens: Number of tokens of an answer that does not end before its cancel.
    """
    body = http_load.body(NAME, "Hi", Load(1, 1, tokens))
    times_ms = []
    async with _open_client() as client, _stream(client, side, body):
        await _wait_for_running(client, side, 1)
        for _ in range(CANCELS):
            if isinstance(side, WorkerSide):
                cancel = await _submit(client, side, body)
            else:
                cancel = await _connect(client, side, body)
            try:
                await _wait_for_running(client, side, 2)
                began = time.perf_counter()
            finally:
                await cancel()
            await _wait_for_running(client, side, 1)
            times_ms.append(1000 * (time.perf_counter() - began))
    return Round({"cancel": {"freed_ms": statistics.median(times_ms)}})


async def kill_core(side: HttpSide, tokens: int) -> Round:
    """Kill the engine core under streams; return the seconds until errors and the next answer.

    Args:
        side: The side.
        tokens: Number of tokens of an answer that does not end before the kill.
    """
    body = http_load.body(NAME, "Hi", Load(1, 1, tokens))
    core = _find_core(side.process.pid)
    async with _open_client() as client:
        async with asyncio.TaskGroup() as group:
            streams = [group.create_task(_read_to_end(client, side, body)) for _ in range(CALLERS)]
            await _wait_for_running(client, side, CALLERS)
            killed = time.perf_counter()
            core.kill()
        ends = [stream.result() for stream in streams]
        figures = {
            "error_s": max(end.at for end in ends) - killed,
            "retryable": sum(end.is_retryable for end in ends),
        }
        if (answered := await _wait_for_answer(client, side)) is not None:
            figures["recovered_s"] = answered - killed
        return Round({"core killed": figures})


def _open_client() -> aiohttp.ClientSession:
    # A connection that waits for its next request may be closed by the server in that moment.
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    return aiohttp.ClientSession(connector=connector, timeout=NO_TIMEOUT)


@dataclass(frozen=True)
class StreamEnd:
    """The end of a stream: its time, and whether its error says that a retry can succeed."""

    at: float
    is_retryable: bool


@asynccontextmanager
async def _stream(
    client: aiohttp.ClientSession, side: HttpSide, body: dict[str, Any]
) -> AsyncIterator[None]:
    """Run requests one after another during the block."""

    async def call() -> None:
        while True:
            await _read_to_end(client, side, body)

    async with asyncio.TaskGroup() as group:
        calling = group.create_task(call())
        yield
        calling.cancel()


async def _read_to_end(
    client: aiohttp.ClientSession, side: HttpSide, body: dict[str, Any]
) -> StreamEnd:
    last = b""
    try:
        async with client.post(f"{side.base}/chat/completions", json=body) as response:
            if response.status == 400:
                raise Lost(f"400: {await response.text()}")
            async for part in response.content.iter_any():
                last = (last + part)[-10_000:]
    except aiohttp.ClientError:
        pass
    return StreamEnd(
        time.perf_counter(), b'"retryable": true' in last or b'"retryable":true' in last
    )


async def _submit(
    client: aiohttp.ClientSession, side: WorkerSide, body: dict[str, Any]
) -> Callable[[], Awaitable[Any]]:
    """Submit a job; return a function that cancels it, as a caller of the platform does."""
    job_input = {"openai_route": "/v1/chat/completions", "openai_input": body}
    async with client.post(f"{side.endpoint}/run", json={"input": job_input}) as response:
        job = (await response.json())["id"]

    async def cancel() -> None:
        async with client.post(f"{side.endpoint}/cancel/{job}"):
            pass

    return cancel


async def _connect(
    client: aiohttp.ClientSession, side: HttpSide, body: dict[str, Any]
) -> Callable[[], Awaitable[Any]]:
    """Send a request; return a function that closes its connection."""
    response = await client.post(f"{side.base}/chat/completions", json=body)

    async def cancel() -> None:
        response.close()

    return cancel


async def _wait_for_running(client: aiohttp.ClientSession, side: HttpSide, count: int) -> None:
    """Wait until the engine's metrics show this number of running requests.

    Raises:
        Lost: If it takes too long.
    """
    deadline = time.monotonic() + RUNNING_S
    url = f"{side.base.removesuffix('/v1')}/metrics"
    while time.monotonic() < deadline:
        async with client.get(url) as response:
            content = await response.read()
        if (found := RUNNING.search(content)) and float(found[1]) == count:
            return
        await asyncio.sleep(0.001)
    raise Lost(f"the metrics never showed {count} running requests")


def _find_core(pid: int) -> psutil.Process:
    for process in psutil.Process(pid).children(recursive=True):
        if "EngineCore" in " ".join(process.cmdline()):
            return process
    raise Lost("the side has no engine core in a process of its own")


async def _wait_for_answer(client: aiohttp.ClientSession, side: HttpSide) -> float | None:
    """Return the time of the next complete answer; None if the side exits."""
    async with asyncio.timeout(RECOVERY_S):
        while side.process.returncode is None:
            try:
                url = f"{side.base}/chat/completions"
                body = http_load.body(NAME, "Hi", Load(1, 1, 2, stream=False))
                async with client.post(url, json=body) as response:
                    await response.read()
                    if response.status == 200:
                        return time.perf_counter()
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)
    return None
