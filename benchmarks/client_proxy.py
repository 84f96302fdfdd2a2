"""Measures what the client's proxy adds to the gateway's latency, and how soon it cancels.

    python benchmarks/client_proxy.py [--rounds 300] [--cancels 5] [--model .models/demo]

Latency: requests one after the other, alternately through the emulator's gateway, through the
proxy, and as jobs through the transport, to the same function that answers at once. The emulator,
the proxy and the callers have a process each. Columns: milliseconds until the whole answer, or
until the first event of a stream (medians and 95th percentiles), and the difference of the medians.

Cancel: from a caller's hang-up at the proxy until the engine's count of unfinished requests falls,
with the real worker. The longest is not held to the goal: on two cores the proxy may have to wait
for one that the engine has. Exits with 1 if a goal is missed.
"""

import argparse
import asyncio
import contextlib
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import bench
import cancel
import httpx

from emulator import Emulator, Options
from llm_worker_client import AsyncRunpodTransport

GOAL_MS = 3.0
CANCEL_GOAL_MS = 200.0
KEY = "any"
PAUSE_S = 0.01
ROUTE = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
ANSWER = {"choices": [{"message": {"content": "Hi"}}]}
EVENTS = ['data: {"choices": []}\n\n', "data: [DONE]\n\n"]


async def be_the_platform() -> None:
    """Serve an emulator whose jobs are answered at once, until killed."""
    async with Emulator() as emulator:
        bench.print_line("url", emulator.api_url)
        queue = emulator.queue
        while True:
            await queue.arrived.wait_for(lambda: queue.has_waiting)
            for job in queue.take(queue.worker("w"), 10):
                given = job.input
                streams = bool((given.get("openai_input") or {}).get("stream"))
                outputs = EVENTS if streams else [ANSWER]
                for output in outputs:
                    queue.add_chunk(job, output)
                queue.complete(job, outputs)


@contextlib.asynccontextmanager
async def platform() -> AsyncIterator[str]:
    command = (sys.executable, "-u", __file__, "--platform")
    async with bench.running(command, {}) as process:
        yield (await bench.next_line(process, "url "))[1]


@contextlib.asynccontextmanager
async def proxy(api_url: str) -> AsyncIterator[str]:
    """Start a proxy; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    command = (
        sys.executable,
        "-m",
        "llm_worker_client",
        "proxy",
        "--endpoint",
        "local",
        "--port",
        port,
    )
    environ = {"PYTHONPATH": "src", "RUNPOD_API_KEY": KEY, "PROXY_API_KEY": ""}
    async with bench.running((*command, "--base-url", api_url), environ, quiet=True):
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient() as client:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    await client.get(f"{url}/v1/models")
                    break
                await asyncio.sleep(0.1)
        yield url


async def asked_ms(client: httpx.AsyncClient, url: str, stream: bool) -> float:
    """Return the milliseconds of a request, or of the first event of a stream."""
    began = time.perf_counter()
    async with client.stream("POST", url, json={**BODY, "stream": stream}) as answer:
        if answer.status_code != 200:
            raise bench.Lost(f"{url} answered {answer.status_code}")
        parts = answer.aiter_bytes()
        await anext(parts)
        took = 1000 * (time.perf_counter() - began)
        async for _ in parts:
            pass
    return took


async def latency(rounds: int) -> bool:
    """Print how long requests take on each way; return whether the goal is met."""
    met = True
    async with platform() as api_url, proxy(api_url) as proxy_url:
        transport = AsyncRunpodTransport("local", KEY, api_url)
        async with httpx.AsyncClient() as plain, httpx.AsyncClient(transport=transport) as jobs:
            ways: dict[str, tuple[httpx.AsyncClient, str]] = {
                "gateway": (plain, f"{api_url}/local/openai{ROUTE}"),
                "proxy": (plain, f"{proxy_url}{ROUTE}"),
                "transport": (jobs, f"http://any{ROUTE}"),
            }
            for stream in (False, True):
                took = await compared(ways, stream, rounds)
                gateway = statistics.median(took["gateway"])
                for way, times in took.items():
                    added = statistics.median(times) - gateway
                    worst = statistics.quantiles(times, n=20)[-1]
                    print(
                        f"{'streamed' if stream else 'whole':9} {way:10} "
                        f"p50 {statistics.median(times):6.2f} ms, p95 {worst:6.2f} ms, "
                        f"added {added:+.2f} ms"
                    )
                    met = met and added <= GOAL_MS
    return met


async def compared(
    ways: dict[str, tuple[httpx.AsyncClient, str]], stream: bool, rounds: int
) -> dict[str, list[float]]:
    took: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(-20, rounds):
        for way, (client, url) in ways.items():
            ms = await asked_ms(client, url, stream)
            if turn >= 0:  # the first turns warm everything up
                took[way].append(ms)
        # Faster turns would wait for the platform's limits of requests, as the client keeps them.
        await asyncio.sleep(PAUSE_S)
    return took


async def cancels(rounds: int, model: str) -> bool:
    """Print how soon a slot is free after a caller's hang-up; return whether the goal is met."""
    script = Path(cancel.__file__)
    command = (sys.executable, "-u", str(script), "--worker")
    async with (
        Emulator(Options()) as emulator,
        bench.running(
            command, {**emulator.worker_environ(), "MODEL_NAME": model}, quiet=True
        ) as worker,
        proxy(emulator.api_url) as url,
        httpx.AsyncClient(base_url=url, timeout=300) as client,
    ):
        # The worker's first chat takes longer.
        for stream in (False, True):
            await client.post(ROUTE, json={**BODY, "max_tokens": 1, "stream": stream})
        took = []
        for turn in range(2 * rounds):
            submitted = time.monotonic()
            body = cancel.payload(raw=False, stream=turn % 2 == 0)["openai_input"]
            asking = asyncio.create_task(client.post(ROUTE, json=body))
            await cancel.time_of_count(worker, 1, submitted)
            await asyncio.sleep(0.6)
            asking.cancel()
            left = time.monotonic()
            took.append(1000 * (await cancel.time_of_count(worker, 0, left) - left))
    print(f"hung up: freed after {statistics.median(took):.0f} ms (longest {max(took):.0f} ms)")
    return statistics.median(took) <= CANCEL_GOAL_MS


async def main(arguments: argparse.Namespace) -> int:
    if arguments.platform:
        await be_the_platform()
    print(bench.machine())
    met = await latency(arguments.rounds)
    if arguments.cancels:
        met = await cancels(arguments.cancels, arguments.model) and met
    return 0 if met else 1


if __name__ == "__main__":
    parser = bench.options(__doc__, rounds=300)
    parser.add_argument("--cancels", type=int, default=5, help="0: none")
    parser.add_argument("--model", default=str(bench.DEMO_MODEL))
    parser.add_argument("--platform", action="store_true", help=argparse.SUPPRESS)
    sys.exit(asyncio.run(main(parser.parse_args())))
