"""Measures the cold start: from the start of the process to its first streamed token.

    python benchmarks/cold_start.py [--rounds 3] [--only starts] [--model .models/demo]
        [--json FILE]

starts: compares the worker, started as in production behind the emulator, with vLLM's own server
(by default, and with the worker's executor), and `make run` with a bare script that imports vLLM
and starts the engine. The sides alternate; the ratios of the medians count, not the seconds.

compiled: the worker with ENFORCE_EAGER=0, which on a CPU compiles C++, on an empty volume, and once
more in a new container that finds there what the first one compiled. Both have an empty home.
"""

import asyncio
import socket
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

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


@asynccontextmanager
async def first_token(model: str, **environ: str) -> AsyncIterator[tuple[float, Process]]:
    """Start a worker; yield the seconds to its first streamed token, and its process."""
    async with Emulator() as emulator:
        params = {"max_tokens": 2}
        job = emulator.queue.submit(
            {"input": {"prompt": PROMPT, "stream": True, "sampling_params": params}}
        )
        start = time.monotonic()
        settings = {"MODEL_NAME": model, **environ, **emulator.worker_environ()}
        running_worker = bench.running(HANDLER, {**ENVIRON, **settings}, merged=True)
        async with running_worker as process:
            await job.changed.wait_for(lambda: bool(job.chunks), LIMIT_S)
            yield job.chunks[0].at - start, process


async def worker(model: str) -> float:
    """Return the seconds from the worker's start to its first streamed token."""
    async with first_token(model) as (seconds, _):
        return seconds


async def compiled(model: str) -> dict[str, float]:
    """Return the same for a worker that compiles, and for the next one on the same volume."""
    environ = {"ENFORCE_EAGER": "0", "MAX_MODEL_LEN": "1024"}
    with (
        tempfile.TemporaryDirectory() as volume,
        tempfile.TemporaryDirectory() as home,
        tempfile.TemporaryDirectory() as next_home,
    ):
        environ["BASE_PATH"] = volume
        async with first_token(model, **environ, HOME=home) as (first_s, process):
            async with asyncio.timeout(LIMIT_S):
                # What the models' classes are, and the engine's code.
                for _ in range(2):
                    await published(process)
        async with first_token(model, **environ, HOME=next_home) as (next_s, _):
            return {"first": first_s, "next": next_s}


async def published(process: Process) -> None:
    """Wait until a worker's log says that an archive is on the volume.

    Raises:
        bench.Lost: the worker ended before.
    """
    assert process.stdout is not None
    async for line in process.stdout:
        if b": published, " in line:
            return
    raise bench.Lost("the worker ended before it published what it compiled")


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


async def measure_starts(model: str, rounds: int) -> dict[str, list[float]]:
    """Measure all sides by turns, and print their ratios."""
    uniprocess = ("--enforce-eager", "--distributed-executor-backend", "uni")
    sides: dict[str, Callable[[], Awaitable[float]]] = {
        "worker, first token": lambda: worker(model),
        "vLLM's server, default": lambda: server(model),
        "vLLM's server, same executor": lambda: server(model, *uniprocess, **UNIPROCESS),
        "bare script, engine started": lambda: bare_script(model),
        "make run, start to exit": lambda: make_run(model),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
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
    return seconds


async def measure_compiled(model: str, rounds: int) -> dict[str, list[float]]:
    found = [await compiled(model) for _ in range(rounds)]
    seconds = {name: [one[name] for one in found] for name in found[0]}
    first, following = map(statistics.median, seconds.values())
    print(f"compiled: first start {first:.1f} s, next {following:.1f} s: {following / first:.2f}")
    return seconds


PARTS = {"starts": measure_starts, "compiled": measure_compiled}


async def main() -> None:
    parser = bench.options(__doc__, keeps=True)
    parser.add_argument("--model", default=str(bench.DEMO_MODEL))
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    args = parser.parse_args()
    found = {name: await PARTS[name](args.model, args.rounds) for name in args.only}
    bench.keep(args.json, found)


if __name__ == "__main__":
    asyncio.run(main())
