"""Measures the cold start: from the start of the process to its first streamed token.

    python benchmarks/cold_start.py [--rounds 3] [--only starts] [--model .models/demo]
        [--json FILE]

starts: compares the worker, started as in production behind the emulator, with vLLM's own server
(with its default executor and with the worker's), and `make run` with a minimal script that imports
vLLM and starts the engine. The sides alternate; the ratios of the medians count, not the seconds.

compiled: the worker with ENFORCE_EAGER=0, which compiles C++ on a CPU: first on an empty volume,
then in a new container on the same volume with the compiled files. Both have an empty home.
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
from proof.measure import processes

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


# For all sides.
ENVIRON = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}


def running(*command: str, **environ: str) -> AbstractAsyncContextManager[Process]:
    return processes.run_process(command, {**ENVIRON, **environ}, quiet=True)


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
        running_worker = processes.run_process(HANDLER, {**ENVIRON, **settings}, merged=True)
        async with running_worker as process:
            await job.changed.wait_for(lambda: bool(job.chunks), LIMIT_S)
            yield job.chunks[0].arrived_at - start, process


async def time_worker(model: str) -> float:
    """Return the seconds from the worker's start to its first streamed token."""
    async with first_token(model) as (seconds, _):
        return seconds


async def time_compiled_starts(model: str) -> dict[str, float]:
    """Time the start of a worker that compiles, and of the next one on the same volume."""
    environ = {"ENFORCE_EAGER": "0", "MAX_MODEL_LEN": "1024"}
    with (
        tempfile.TemporaryDirectory() as volume,
        tempfile.TemporaryDirectory() as home,
        tempfile.TemporaryDirectory() as next_home,
    ):
        environ["BASE_PATH"] = volume
        async with first_token(model, **environ, HOME=home) as (first_s, process):
            async with asyncio.timeout(LIMIT_S):
                # One archive has the data about model classes, the other one the engine's code.
                for _ in range(2):
                    await wait_for_archive(process)
        async with first_token(model, **environ, HOME=next_home) as (next_s, _):
            return {"first": first_s, "next": next_s}


async def wait_for_archive(process: Process) -> None:
    """Wait until a worker logs that it has written an archive to the volume.

    Raises:
        processes.Lost: If the worker exits first.
    """
    assert process.stdout is not None
    async for line in process.stdout:
        if b": published, " in line:
            return
    raise processes.Lost("the worker ended before it published what it compiled")


async def time_server(model: str, *options: str, **environ: str) -> float:
    """Return the seconds from the start of vLLM's own server to its first streamed token."""
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


async def time_bare_script(model: str) -> float:
    """Return the seconds from the start of a script without the worker to its running engine."""
    start = time.monotonic()
    command = (sys.executable, "-c", BARE.format(model=model))
    async with running(*command, **UNIPROCESS) as process:
        await processes.next_line(process, "started")
        return time.monotonic() - start


async def time_make_run(model: str) -> float:
    """Return the duration of `make run` in seconds."""
    start = time.monotonic()
    async with running("make", "run", MODEL_NAME=model) as process:
        await process.communicate()
    return time.monotonic() - start


async def measure_starts(model: str, rounds: int) -> dict[str, list[float]]:
    """Measure all sides alternately, and print their ratios."""
    uniprocess = ("--enforce-eager", "--distributed-executor-backend", "uni")
    sides: dict[str, Callable[[], Awaitable[float]]] = {
        "worker, first token": lambda: time_worker(model),
        "vLLM's server, default": lambda: time_server(model),
        "vLLM's server, same executor": lambda: time_server(model, *uniprocess, **UNIPROCESS),
        "bare script, engine started": lambda: time_bare_script(model),
        "make run, start to exit": lambda: time_make_run(model),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, measure in sides.items():
            took = await measure()
            # The first round does not count: it fills the page cache and vLLM's own caches.
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
    results = [await time_compiled_starts(model) for _ in range(rounds)]
    seconds = {name: [result[name] for result in results] for name in results[0]}
    first, next_ = map(statistics.median, seconds.values())
    print(f"compiled: first start {first:.1f} s, next {next_:.1f} s: {next_ / first:.2f}")
    return seconds


PARTS = {"starts": measure_starts, "compiled": measure_compiled}


async def main() -> None:
    parser = bench.options(__doc__, writes_json=True)
    parser.add_argument("--model", default=str(bench.DEMO_MODEL))
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    args = parser.parse_args()
    results = {name: await PARTS[name](args.model, args.rounds) for name in args.only}
    bench.write_json(args.json, results)


if __name__ == "__main__":
    asyncio.run(main())
