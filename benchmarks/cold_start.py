"""Measures the cold start: from the start of the process to its first streamed token.

    python benchmarks/cold_start.py [--rounds 3] [--model .models/demo]

Compares the worker, started as in production behind the emulator, with vLLM's own server (by
default, and with the worker's executor), and `make run` with a bare script that imports vLLM and
starts the engine. The sides alternate; the ratios of the medians count, not the seconds.
"""

import asyncio
import socket
import statistics
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import aiohttp
import bench

from emulator import Emulator

PROMPT = "What does this worker do?"
LIMIT_S = 180
HANDLER = (sys.executable, "-u", "src/handler.py")
UNIPROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}

BARE = """
import os
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM
args = AsyncEngineArgs(
    model={model!r}, dtype="float32", enforce_eager=True, distributed_executor_backend="uni"
)
config = args.create_engine_config()
os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
AsyncLLM.from_vllm_config(config)
print("started", flush=True)
os._exit(0)
"""


# For every side.
ENVIRON = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}


def running(*command: str, **environ: str) -> AbstractAsyncContextManager[Process]:
    return bench.running(command, {**ENVIRON, **environ}, quiet=True)


async def worker(model: str) -> float:
    """Return the seconds from the worker's start to its first streamed token."""
    async with Emulator() as emulator:
        params = {"max_tokens": 2}
        job = emulator.queue.submit(
            {"input": {"prompt": PROMPT, "stream": True, "sampling_params": params}}
        )
        start = time.monotonic()
        async with running(*HANDLER, MODEL_NAME=model, **emulator.worker_environ()):
            await job.changed.wait_for(lambda: bool(job.chunks), LIMIT_S)
            return job.chunks[0].at - start


async def server(model: str, *options: str, **environ: str) -> float:
    """Return the same for vLLM's own server."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = ("-m", "vllm.entrypoints.openai.api_server", "--model", model, "--port", str(port))
    body = {"model": model, "prompt": PROMPT, "max_tokens": 2, "stream": True}
    start = time.monotonic()
    async with (
        running(sys.executable, *command, "--dtype", "float32", *options, **environ),
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client,
    ):
        while time.monotonic() - start < LIMIT_S:
            try:
                async with client.post("/v1/completions", json=body) as response:
                    await response.content.readany()
                    return time.monotonic() - start
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.05)
    return float("inf")


async def bare_script(model: str) -> float:
    """Return the seconds from the start of a script without the worker to its running engine."""
    start = time.monotonic()
    command = (sys.executable, "-c", BARE.format(model=model))
    async with running(*command, **UNIPROCESS) as process:
        await bench.next_line(process, "started")
        return time.monotonic() - start


async def make_run(model: str) -> float:
    """Return the seconds that `make run` takes."""
    start = time.monotonic()
    async with running("make", "run", MODEL_NAME=model) as process:
        await process.communicate()
    return time.monotonic() - start


async def main() -> None:
    parser = bench.options(__doc__)
    parser.add_argument("--model", default=str(bench.DEMO_MODEL))
    args = parser.parse_args()
    model = args.model
    uniprocess = ("--enforce-eager", "--distributed-executor-backend", "uni")
    sides: dict[str, Callable[[], Awaitable[float]]] = {
        "worker, first token": lambda: worker(model),
        "vLLM's server, default": lambda: server(model),
        "vLLM's server, same executor": lambda: server(model, *uniprocess, **UNIPROCESS),
        "bare script, engine started": lambda: bare_script(model),
        "make run, start to exit": lambda: make_run(model),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(args.rounds + 1):
        for name, measure in sides.items():
            took = await measure()
            # Not the first round, which fills the page cache and vLLM's own caches.
            if number:
                seconds[name].append(took)
            print(f"round {number}  {name:30} {took:6.2f} s", flush=True)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    ours, default, same, bare, run = median.values()
    print(f"worker / vLLM's server, default:        {ours / default:.2f}")
    print(f"worker / vLLM's server, same executor:  {ours / same:.2f}")
    print(f"make run / bare script:                 {run / bare:.2f}")


if __name__ == "__main__":
    asyncio.run(main())
