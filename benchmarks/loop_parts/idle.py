"""Sequential jobs on an idle worker."""

import asyncio
import json
import random
import socket
import statistics
import sys
import time
from argparse import Namespace
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import cancel

from loop_parts.endpoint import (
    ENGINE,
    START_S,
    alternate,
    payload,
    percentiles,
    start_endpoint,
    verdict,
)
from proof.measure import http_load, processes

GOAL_MS = 10  # for the p99 from take to engine
FIRST_TOKEN_GOAL = 1.5  # relative to vLLM's own server
REQUESTS = 20  # per round
# Longest pause between two jobs; random pauses hit a polling loop at any moment.
PAUSE_S = 0.1
# The worker, with a thread that prints each change of the engine's number of requests.
WATCHED_WORKER = [sys.executable, "-u", str(Path(cancel.__file__)), "--worker"]
# The same for both sides.
NAME = "demo"
WORKER = {
    "DTYPE": "float32",
    "ENFORCE_EAGER": "1",
    "DISTRIBUTED_EXECUTOR_BACKEND": "uni",
    "MAX_MODEL_LEN": "512",
    "MAX_NUM_SEQS": "64",
    "SERVED_MODEL_NAME": NAME,
}
SERVER = f"""
    --dtype float32 --enforce-eager --distributed-executor-backend uni --max-model-len 512
    --max-num-seqs 64 --served-model-name {NAME} --disable-uvicorn-access-log
""".split()


async def measure(args: Namespace) -> dict[str, Any]:
    return {**await take_to_engine(args), **await first_tokens(args)}


async def take_to_engine(args: Namespace) -> dict[str, list[float]]:
    """Measure the time of a job in the queue, and from there to the engine."""
    rng = random.Random(7)
    queue_waits: list[float] = []
    engine_waits: list[float] = []
    environ = {"MODEL_NAME": str(args.model)}
    async with start_endpoint(environ, WATCHED_WORKER, stdout=PIPE) as endpoint:
        for prompt in http_load.prompts(args.idle_jobs):
            await asyncio.sleep(rng.uniform(0, PAUSE_S))
            job = endpoint.emulator.queue.submit(payload(prompt, tokens=4))
            process = endpoint.processes[0]
            async with asyncio.timeout(START_S):
                arrived = await cancel.wait_for_count(process, 1, job.queued_at)
                await job.wait_for_end()
            assert job.started_at is not None
            queue_waits.append(1000 * (job.started_at - job.queued_at))
            engine_waits.append(1000 * (arrived - job.started_at))
    print(f"  submitted to taken  {percentiles(queue_waits)}")
    print(f"  taken to engine     {percentiles(engine_waits)} (goal of p99: {GOAL_MS})")
    return {"submitted_to_taken_ms": queue_waits, "taken_to_engine_ms": engine_waits}


async def first_tokens(args: Namespace) -> dict[str, Any]:
    """Compare the time to the first token with vLLM's own server."""
    async with (
        start_server(args.model) as server_url,
        start_endpoint({**WORKER, "MODEL_NAME": str(args.model)}) as endpoint,
        aiohttp.ClientSession(raise_for_status=True) as client,
    ):
        urls = {"worker": endpoint.emulator.openai_url, "vLLM": server_url}
        rng = random.Random(7)

        async def one_round(url: str) -> list[float]:
            times = []
            for _ in range(REQUESTS):
                await asyncio.sleep(rng.uniform(0, PAUSE_S))
                times.append(await first_token_ms(client, url))
            return times

        sides = {side: lambda url=url: one_round(url) for side, url in urls.items()}
        times = await alternate(sides, args.idle_rounds)
    for side, rounds in times.items():
        print(f"  first token, {side:6} {percentiles([ms for values in rounds for ms in values])}")
    pairs = zip(times["worker"], times["vLLM"], strict=True)
    ratio = statistics.median(
        statistics.median(ours) / statistics.median(theirs) for ours, theirs in pairs
    )
    print(f"  first token, worker / vLLM's server: {verdict(ratio, FIRST_TOKEN_GOAL)}")
    return {"first_token_ms": times, "first_token_ratio": ratio}


async def first_token_ms(client: aiohttp.ClientSession, url: str) -> float:
    """Return the milliseconds from a streamed chat completion to its first text."""
    messages = [{"role": "user", "content": "What does this worker do?"}]
    body = {"model": NAME, "messages": messages, "max_tokens": 4, "temperature": 0, "stream": True}
    first = None
    start = time.monotonic()
    async with client.post(f"{url}/chat/completions", json=body) as response:
        async for line in response.content:
            if first is None and has_text(line):
                first = time.monotonic()
    if first is None:
        raise processes.Lost(f"no token from {url}")
    return 1000 * (first - start)


def has_text(line: bytes) -> bool:
    """Return whether a line of a stream is an event with text."""
    if not line.startswith(b"data: {"):
        return False
    choices = json.loads(line.removeprefix(b"data: "))["choices"]
    return any(choice["delta"].get("content") for choice in choices)


@asynccontextmanager
async def start_server(model: Path) -> AsyncIterator[str]:
    """Start vLLM's own server with the worker's engine settings; yield its URL once it answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    module = "vllm.entrypoints.openai.api_server"
    command = [sys.executable, "-m", module, "--model", str(model), "--port", str(port), *SERVER]
    environ = {**ENGINE, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    url = f"http://127.0.0.1:{port}"
    async with (
        processes.run_process(command, environ, quiet=True, stdout=DEVNULL),
        aiohttp.ClientSession() as client,
    ):
        async with asyncio.timeout(START_S):
            await wait_until_healthy(client, f"{url}/health")
        yield f"{url}/v1"


async def wait_until_healthy(client: aiohttp.ClientSession, url: str) -> None:
    while True:
        with suppress(aiohttp.ClientConnectionError):
            async with client.get(url) as response:
                if response.ok:
                    return
        await asyncio.sleep(0.2)
