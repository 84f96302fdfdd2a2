"""Measures the cold start: from a process's start to its first streamed token.

    python benchmarks/cold_start.py [--rounds 3] [--model .models/demo]

Compares the worker, started as in production behind the emulator, with vLLM's own server as it
starts by default and with the worker's executor, and `make run` with a bare script that imports
vLLM and starts the engine. The sides alternate; the medians' ratios count, not the seconds.
"""

import argparse
import asyncio
import os
import signal
import socket
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

from emulator import Emulator  # noqa: E402 - found by the line above

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


async def start(*command: str, **environ: str) -> asyncio.subprocess.Process:
    base = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    return await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        env={**base, **environ},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )


async def stop(process: asyncio.subprocess.Process) -> None:
    # The whole session: engines and ping processes outlive a parent that is killed.
    os.killpg(process.pid, signal.SIGKILL)
    await process.communicate()


async def worker(model: str) -> float:
    async with Emulator() as emulator:
        params = {"max_tokens": 2}
        job = emulator.queue.submit(
            {"input": {"prompt": PROMPT, "stream": True, "sampling_params": params}}
        )
        begun = time.monotonic()
        process = await start(*HANDLER, MODEL_NAME=model, **emulator.worker_environ())
        try:
            await job.changed.wait_for(lambda: bool(job.chunks), LIMIT_S)
            return job.chunks[0].at - begun
        finally:
            await stop(process)


async def server(model: str, *options: str, **environ: str) -> float:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = ("-m", "vllm.entrypoints.openai.api_server", "--model", model, "--port", str(port))
    body = {"model": model, "prompt": PROMPT, "max_tokens": 2, "stream": True}
    begun = time.monotonic()
    process = await start(sys.executable, *command, "--dtype", "float32", *options, **environ)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
            while time.monotonic() - begun < LIMIT_S:
                try:
                    async with client.post("/v1/completions", json=body) as response:
                        await response.content.readany()
                        return time.monotonic() - begun
                except aiohttp.ClientConnectionError:
                    await asyncio.sleep(0.05)
        return float("inf")
    finally:
        await stop(process)


async def first_line(*command: str, marks: bytes, **environ: str) -> float:
    """Time a process from its start to the first line of its output that begins so."""
    begun = time.monotonic()
    process = await start(*command, **environ)
    try:
        assert process.stdout is not None
        async for line in process.stdout:
            if line.startswith(marks):
                return time.monotonic() - begun
        return float("inf")
    finally:
        await stop(process)


async def whole(*command: str, **environ: str) -> float:
    begun = time.monotonic()
    process = await start(*command, **environ)
    await process.communicate()
    return time.monotonic() - begun


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default=str(ROOT / ".models" / "demo"))
    args = parser.parse_args()
    model = args.model
    uniprocess = ("--enforce-eager", "--distributed-executor-backend", "uni")
    sides: dict[str, Callable[[], Awaitable[float]]] = {
        "worker, first token": lambda: worker(model),
        "vLLM's server, default": lambda: server(model),
        "vLLM's server, same executor": lambda: server(model, *uniprocess, **UNIPROCESS),
        "bare script, engine started": lambda: first_line(
            sys.executable, "-c", BARE.format(model=model), marks=b"started", **UNIPROCESS
        ),
        "make run, start to exit": lambda: whole("make", "run", MODEL_NAME=model),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(args.rounds + 1):
        for name, measure in sides.items():
            took = await measure()
            # The first round fills the page cache and vLLM's own caches.
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
