"""Measures how long a cancelled job keeps its slot in the engine.

    python benchmarks/cancel.py [--rounds 3] [--model .models/demo] [--post-delay 0.05]

The time is from the platform's cancel until the engine's number of unfinished requests decreases.
Both paths are measured, streamed and not, with the SDK's real loop and POSTs that take
`--post-delay` seconds. The worker is this file, run in a child process with a thread that watches
the number.
"""

import argparse
import asyncio
import statistics
import sys
import threading
import time
from asyncio.subprocess import Process
from typing import Any

import bench

import handler
from emulator import Emulator, Options, faults_that_delay_posts
from proof.measure import processes
from worker.settings.environment import environ_with_secrets
from worker.settings.sources import gather_settings

SAMPLING: dict[str, Any] = {"max_tokens": 1900, "ignore_eos": True}
MESSAGES = [{"role": "user", "content": "Hi"}]


def payload(raw: bool, stream: bool) -> dict[str, Any]:
    if raw:
        return {"messages": MESSAGES, "sampling_params": SAMPLING, "stream": stream}
    body = {"messages": MESSAGES, **SAMPLING, "stream": stream}
    return {"openai_route": "/v1/chat/completions", "openai_input": body}


def run_worker() -> None:
    """Run the worker, and print each change of the number of requests with its time.monotonic."""
    with handler.start_engines(gather_settings(environ_with_secrets()), ("runpod",)) as (
        engines,
        settings,
    ):

        def watch(count: int = 0) -> None:
            while True:
                if (now := engines.main_engine.unfinished_request_count) != count:  # type: ignore[attr-defined]  # the real engine's own
                    count = now
                    bench.print_line("count", count, time.monotonic())
                time.sleep(0.0002)

        threading.Thread(target=watch, daemon=True).start()
        handler.run_sdk(engines, settings)


async def wait_for_count(worker: Process, count: int, since: float) -> float:
    """Return the time (time.monotonic) at which the engine had this number of requests."""
    while True:
        _, printed, at = await processes.next_line(worker, "count ")
        if int(printed) == count and float(at) >= since:
            return float(at)


async def cancel_ms(
    emulator: Emulator, worker: Process, job_input: dict[str, Any], rounds: int
) -> list[float]:
    """Cancel jobs sequentially; return the milliseconds until their slots were free."""
    times_ms = []
    for _ in range(rounds):
        submitted = time.monotonic()
        job = emulator.queue.submit({"input": job_input})
        await wait_for_count(worker, 1, submitted)
        await asyncio.sleep(0.6)
        cancelled = time.monotonic()
        emulator.queue.cancel(job)
        times_ms.append(1000 * (await wait_for_count(worker, 0, cancelled) - cancelled))
    return times_ms


async def main(rounds: int, model: str, post_delay_s: float) -> None:
    command = (sys.executable, "-u", __file__, "--worker")
    async with (
        Emulator(Options(faults=faults_that_delay_posts(post_delay_s))) as emulator,
        processes.run_process(
            command, {**emulator.worker_environ(), "MODEL_NAME": model}, quiet=True
        ) as worker,
    ):
        emulator.queue.submit({"input": {"prompt": "Hi"}})
        # If the worker does not start, its output ends.
        for count in (1, 0):
            await wait_for_count(worker, count, since=0)
        for raw in (True, False):
            for stream in (False, True):
                times_ms = await cancel_ms(emulator, worker, payload(raw, stream), rounds)
                path = f"{'raw' if raw else 'OpenAI'}, {'streamed' if stream else 'whole'}"
                print(
                    f"{path:18} freed after {statistics.median(times_ms):5.1f} ms "
                    f"(median of {rounds}; longest {max(times_ms):.1f} ms)"
                )


if __name__ == "__main__":
    parser = bench.options(__doc__)
    parser.add_argument("--model", default=str(bench.DEMO_MODEL))
    parser.add_argument("--post-delay", type=float, default=0.05, help="seconds")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        run_worker()
    else:
        asyncio.run(main(args.rounds, args.model, args.post_delay))
