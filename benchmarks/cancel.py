"""Measures how long a cancelled job keeps its slot in the engine.

    python benchmarks/cancel.py [--rounds 3] [--model .models/demo] [--post-delay 0.05]

The time is from the platform's cancel until the engine's number of unfinished requests decreases,
which a thread of the worker watches. Both paths are measured, streamed and not, with POSTs that
take `--post-delay` seconds.
"""

import asyncio
import statistics
import time
from argparse import Namespace
from asyncio.subprocess import PIPE
from typing import Any

import bench
from endpoint import WATCHED_WORKER, start_endpoint, wait_for_count

from emulator import Options, faults_that_delay_posts

SAMPLING: dict[str, Any] = {"max_tokens": 1900, "ignore_eos": True}
MESSAGES = [{"role": "user", "content": "Hi"}]


def chat_body(stream: bool) -> dict[str, Any]:
    """Return a chat that does not end before its cancel."""
    return {"messages": MESSAGES, **SAMPLING, "stream": stream}


async def main(args: Namespace) -> None:
    options = Options(faults=faults_that_delay_posts(args.post_delay))
    running = start_endpoint(
        {"MODEL_NAME": args.model}, WATCHED_WORKER, options=options, stdout=PIPE
    )
    async with running as endpoint:
        queue, worker = endpoint.emulator.queue, endpoint.processes[0]
        queue.submit({"input": {"prompt": "Hi"}})
        for count in (1, 0):
            await wait_for_count(worker, count, since=0)
        for path in ("raw", "OpenAI"):
            for stream in (False, True):
                job_input: dict[str, Any] = {
                    "messages": MESSAGES,
                    "sampling_params": SAMPLING,
                    "stream": stream,
                }
                if path == "OpenAI":
                    body = chat_body(stream)
                    job_input = {"openai_route": "/v1/chat/completions", "openai_input": body}
                times_ms = []
                for _ in range(args.rounds):
                    submitted = time.monotonic()
                    job = queue.submit({"input": job_input})
                    await wait_for_count(worker, 1, submitted)
                    await asyncio.sleep(0.6)
                    cancelled = time.monotonic()
                    queue.cancel(job)
                    freed = await wait_for_count(worker, 0, cancelled)
                    times_ms.append(1000 * (freed - cancelled))
                title = f"{path}, {'streamed' if stream else 'whole'}"
                print(
                    f"{title:18} freed after {statistics.median(times_ms):5.1f} ms "
                    f"(median of {args.rounds}; longest {max(times_ms):.1f} ms)"
                )


if __name__ == "__main__":
    parser = bench.options(__doc__)
    parser.add_argument("--model", default=str(bench.DEMO_MODEL))
    parser.add_argument("--post-delay", type=float, default=0.05, help="seconds")
    asyncio.run(main(parser.parse_args()))
