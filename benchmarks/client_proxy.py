"""Measures the latency that the client's proxy adds to the gateway's, and how fast it cancels.

    python benchmarks/client_proxy.py [--rounds 300] [--cancels 5] [--model .models/demo]

Latency: sequential requests, alternately through the emulator's gateway, through the proxy, and as
jobs through the transport, to the same function, which answers immediately. The emulator, the proxy
and the callers are separate processes. Columns: milliseconds to the complete response, or to the
first event of a stream (medians and 95th percentiles), and the difference of the medians.

Cancel: from the moment when a caller disconnects from the proxy until the engine's number of
unfinished requests decreases, which a thread of the worker watches. The goal is for the median, not
for the longest time: on two cores, the proxy may have to wait for a core that the engine uses. The
exit status is 1 if a goal is missed.
"""

import argparse
import asyncio
import contextlib
import statistics
import sys
import threading
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from typing import Any

import bench
import httpx
from endpoint import start_endpoint

from emulator import Emulator
from llm_worker_client import AsyncRunpodTransport
from proof.measure.processes import Lost, next_line, print_line, run_process
from proof.measure.sides import PYTHONPATH, free_port

GOAL_MS = 3.0
CANCEL_GOAL_MS = 200.0
KEY = "any"
PAUSE_S = 0.01
ROUTE = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
ANSWER = {"choices": [{"message": {"content": "Hi"}}]}
# Of an answer that doesn't end before its cancel.
LONG: dict[str, Any] = {**BODY, "max_tokens": 1900, "ignore_eos": True}
EVENTS = ['data: {"choices": []}\n\n', "data: [DONE]\n\n"]


async def serve_platform() -> None:
    """Run an emulator that answers its jobs immediately, until killed."""
    async with Emulator() as emulator:
        print_line("url", emulator.api_url)
        queue = emulator.queue
        while True:
            await queue.changed.wait_for(lambda: queue.has_available_jobs)
            for job in queue.take(queue.get_worker("w"), 10):
                job_input = job.input
                streams = bool((job_input.get("openai_input") or {}).get("stream"))
                outputs = EVENTS if streams else [ANSWER]
                for output in outputs:
                    queue.add_chunk(job, output)
                queue.complete(job, outputs)


@contextlib.asynccontextmanager
async def start_proxy(api_url: str) -> AsyncIterator[str]:
    """Start a proxy; yield its URL."""
    port = str(free_port())
    command = [sys.executable, "-m", "llm_worker_client", "proxy", "--endpoint", "local"]
    command += ["--port", port, "--base-url", api_url]
    environ = {**PYTHONPATH, "RUNPOD_API_KEY": KEY, "PROXY_API_KEY": ""}
    async with run_process(command, environ, quiet=True):
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient() as client:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    await client.get(f"{url}/v1/models")
                    break
                await asyncio.sleep(0.1)
        yield url


async def request_ms(client: httpx.AsyncClient, url: str, stream: bool) -> float:
    """Return the milliseconds to a complete response or to the first event of a stream."""
    began = time.perf_counter()
    async with client.stream("POST", url, json={**BODY, "stream": stream}) as response:
        if response.status_code != 200:
            raise Lost(f"{url} answered {response.status_code}")
        parts = response.aiter_bytes()
        await anext(parts)
        elapsed_ms = 1000 * (time.perf_counter() - began)
        async for _ in parts:
            pass
    return elapsed_ms


async def latency(rounds: int) -> bool:
    """Print the latency of each way to the endpoint; return whether the goal is met."""
    is_met = True
    command = (sys.executable, "-u", __file__, "--platform")
    async with run_process(command, {}) as platform:
        _, api_url = await next_line(platform, "url ")
        transport = AsyncRunpodTransport("local", KEY, api_url)
        async with (
            start_proxy(api_url) as proxy_url,
            httpx.AsyncClient() as client,
            httpx.AsyncClient(transport=transport) as jobs,
        ):
            ways: dict[str, tuple[httpx.AsyncClient, str]] = {
                "gateway": (client, f"{api_url}/local/openai{ROUTE}"),
                "proxy": (client, f"{proxy_url}{ROUTE}"),
                "transport": (jobs, f"http://any{ROUTE}"),
            }
            for stream in (False, True):
                times_ms: dict[str, list[float]] = {way: [] for way in ways}
                for turn in range(-20, rounds):
                    for way, (sender, url) in ways.items():
                        ms = await request_ms(sender, url, stream)
                        if turn >= 0:  # the first turns warm everything up
                            times_ms[way].append(ms)
                    # With faster turns, the client would observe the platform's rate limits.
                    await asyncio.sleep(PAUSE_S)
                gateway = statistics.median(times_ms["gateway"])
                for way, times in times_ms.items():
                    added = statistics.median(times) - gateway
                    worst = statistics.quantiles(times, n=20)[-1]
                    print(
                        f"{'streamed' if stream else 'whole':9} {way:10} "
                        f"p50 {statistics.median(times):6.2f} ms, p95 {worst:6.2f} ms, "
                        f"added {added:+.2f} ms"
                    )
                    is_met = is_met and added <= GOAL_MS
    return is_met


def run_watched_worker() -> None:
    """Run the worker, and print each change of the engine's number of requests with its time."""
    import handler  # noqa: PLC0415 - in the worker's process only
    from worker.settings.environment import environ_with_secrets  # noqa: PLC0415 - the same
    from worker.settings.sources import gather_settings  # noqa: PLC0415 - the same

    settings = gather_settings(environ_with_secrets())
    with handler.start_engines(settings, ("runpod",)) as (engines, started_settings):

        def watch(count: int = 0) -> None:
            while True:
                if (now := engines.main_engine.unfinished_request_count) != count:  # type: ignore[attr-defined]  # the real engine's own
                    count = now
                    print_line("count", count, time.monotonic())
                time.sleep(0.0002)

        threading.Thread(target=watch, daemon=True).start()
        handler.run_sdk(engines, started_settings)


async def wait_for_count(worker: Process, count: int, since: float) -> float:
    """Return the time (time.monotonic) at which a watched worker's engine had so many requests."""
    while True:
        _, printed, at = await next_line(worker, "count ")
        if int(printed) == count and float(at) >= since:
            return float(at)


async def cancels(rounds: int, model: str) -> bool:
    """Print how soon a slot is free after a caller disconnects; return whether the goal is met."""
    command = (sys.executable, "-u", __file__, "--worker")
    async with (
        start_endpoint({"MODEL_NAME": model}, command, stdout=PIPE) as endpoint,
        start_proxy(endpoint.emulator.api_url) as url,
        httpx.AsyncClient(base_url=url, timeout=300) as client,
    ):
        worker = endpoint.processes[0]
        # The worker's first chat takes longer.
        for stream in (False, True):
            await client.post(ROUTE, json={**BODY, "max_tokens": 1, "stream": stream})
        times_ms = []
        for turn in range(2 * rounds):
            submitted = time.monotonic()
            body = {**LONG, "stream": turn % 2 == 0}
            request = asyncio.create_task(client.post(ROUTE, json=body))
            await wait_for_count(worker, 1, submitted)
            await asyncio.sleep(0.6)
            request.cancel()
            disconnected_at = time.monotonic()
            freed_at = await wait_for_count(worker, 0, disconnected_at)
            times_ms.append(1000 * (freed_at - disconnected_at))
    print(
        f"hung up: freed after {statistics.median(times_ms):.0f} ms "
        f"(longest {max(times_ms):.0f} ms)"
    )
    return statistics.median(times_ms) <= CANCEL_GOAL_MS


async def main(arguments: argparse.Namespace) -> int:
    if arguments.platform:
        await serve_platform()
    print(bench.machine())
    is_met = await latency(arguments.rounds)
    if arguments.cancels:
        is_met = await cancels(arguments.cancels, arguments.model) and is_met
    return 0 if is_met else 1


if __name__ == "__main__":
    parser = bench.options(__doc__, rounds=300)
    parser.add_argument("--cancels", type=int, default=5, help="number of cancels; 0 for none")
    parser.add_argument("--model", default=str(bench.DEMO_MODEL))
    parser.add_argument("--platform", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        run_watched_worker()
    else:
        sys.exit(asyncio.run(main(options)))
