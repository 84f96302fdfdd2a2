"""Measures how long a cancelled job keeps its slot in the engine.

    python benchmarks/cancel.py [--rounds 3] [--model .models/demo] [--post-delay 0.05]

From the platform's cancel to the moment when the engine's own count of unfinished requests falls:
both paths, streamed and not, through the SDK's real loop and a link on which each POST takes its
time. The worker runs in a child that is this file again, with a thread that watches the count.
"""

import argparse
import asyncio
import os
import signal
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

import handler  # noqa: E402 - found by the line above
from emulator import Emulator, Options, slow_link  # noqa: E402 - likewise

SAMPLING: dict[str, Any] = {"max_tokens": 1900, "ignore_eos": True}
MESSAGES = [{"role": "user", "content": "Hi"}]


def payload(raw: bool, stream: bool) -> dict[str, Any]:
    if raw:
        return {"messages": MESSAGES, "sampling_params": SAMPLING, "stream": stream}
    body = {"messages": MESSAGES, **SAMPLING, "stream": stream}
    return {"openai_route": "/v1/chat/completions", "openai_input": body}


def probe() -> None:
    """Be the worker, and print when (time.monotonic) the engine's count changes."""
    with handler.started("runpod") as (engines, settings):

        def watch(count: int = 0) -> None:
            while True:
                if (now := engines.main.unfinished_requests) != count:  # type: ignore[attr-defined]  # the real engine's own
                    count = now
                    # One write, on a line of its own whatever the SDK is printing.
                    os.write(1, f"\ncount {count} {time.monotonic()}\n".encode())
                time.sleep(0.0005)

        threading.Thread(target=watch, daemon=True).start()
        handler.serve(engines, settings)


class Counts:
    """The engine's count, as the probe tells it."""

    def __init__(self, output: asyncio.StreamReader) -> None:
        self._output = output

    async def until(self, wanted: int, since: float) -> float:
        async for line in self._output:
            if line.startswith(b"count "):
                _, count, at = line.split()
                if int(count) == wanted and float(at) >= since:
                    return float(at)
        raise RuntimeError("the worker ended")


async def main(rounds: int, model: str, post_delay_s: float) -> None:
    async with Emulator(Options(faults=slow_link(post_delay_s))) as emulator:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-u", __file__, "--probe"),
            env={**os.environ, **emulator.worker_environ(), "MODEL_NAME": model},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        assert process.stdout is not None
        counts = Counts(process.stdout)
        try:
            ready = emulator.queue.submit({"input": {"prompt": "Hi"}})
            await ready.wait_ended(90)
            for raw in (True, False):
                for stream in (False, True):
                    took = []
                    for _ in range(rounds):
                        submitted = time.monotonic()
                        job = emulator.queue.submit({"input": payload(raw, stream)})
                        await counts.until(1, submitted)
                        await asyncio.sleep(0.6)
                        cancelled = time.monotonic()
                        emulator.queue.cancel(job)
                        took.append(1000 * (await counts.until(0, cancelled) - cancelled))
                    path = f"{'raw' if raw else 'OpenAI'}, {'streamed' if stream else 'whole'}"
                    print(
                        f"{path:18} freed after {statistics.median(took):5.1f} ms "
                        f"(median of {rounds}; longest {max(took):.1f} ms)"
                    )
        finally:
            # The whole session: engine and ping process outlive a worker that is killed.
            os.killpg(process.pid, signal.SIGKILL)
            await process.communicate()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default=str(ROOT / ".models" / "demo"))
    parser.add_argument("--post-delay", type=float, default=0.05, help="seconds")
    parser.add_argument("--probe", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.probe:
        probe()
    else:
        asyncio.run(main(args.rounds, args.model, args.post_delay))
