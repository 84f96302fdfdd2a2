"""Measures batches: throughput and memory against vLLM's run_batch, and many batches.

    python benchmarks/batch.py throughput [--rounds 3] [--lines 2000]
    python benchmarks/batch.py memory [--rounds 3] [--megabytes 200]
    python benchmarks/batch.py many [--rounds 1] [--seconds 30]

throughput, memory: each side is a separate process (this file) with the same input and the same
engine settings (128 concurrent requests, 512 tokens, float32, eager, one process for the engine
core), and is warmed up. The sides alternate; the ratios count, not the seconds. The demo model's
steps take almost no time; with any real model, the ratios are nearer to 1. The exit status is 1 if
a goal is missed.

throughput: lines per second, from the job's submission to its end, or of run_batch's own function
from the started engine to the written output. Neither side includes the startup. Goal: 0.95 x.

memory: the largest growth of the process for an input of lines of 100 kB, relative to its size with
the loaded engine; without the engine core. Goal: below 150 MB.

many: one caller with 4 tokens per request, with and without batches in the same worker: 180 batches
of 100 lines of 1,500 tokens on a queue endpoint, one of 1,000 lines that the worker has taken up
without a job, and 600 batches of one such line over HTTP. Goals: on the queue, the median is at
most 3 x and the maximum below 2 s; next to work without a job, the median is at most 1.5 x; over
HTTP, it is at most 2 x, and the worker has at most 10 more threads. `make prove` kills the worker
of a batch.
"""

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import bench
import psutil
from endpoint import Endpoint, serve, start_endpoint

from proof.measure import loads
from proof.measure.comparison import turns
from proof.measure.processes import Lost, next_line, print_line, run_process

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SLOTS = 128
MAX_MODEL_LEN = 512
# The worker's own values on a CPU, for both sides; ERROR avoids a log line per request.
ENVIRON = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
TOKENS = 16
LONG_BYTES = 100_000
THROUGHPUT, GROWTH_MB = 0.95, 150
# Each side first runs a warm-up: a first request and the first concurrent requests take seconds
# longer.
WARM_UP_LINES = 2 * SLOTS
WARM_UP_NAME = "warm"
# many: tokens of the caller's requests and of the batches' lines; seconds before the first
# measurement, after the creation of the batches, and of batches that have no job.
SHORT_TOKENS, LONG_TOKENS = 4, 1_500
WARM_UP_S, SETTLE_S, TAKE_UP_S = 3.0, 3.0, 25.0


def write_input(path: Path, count: int, tokens: int, padding: int = 0, names: str = "line") -> Path:
    """Write an input file of chats with answers of so many tokens, and so many bytes more a line.

    The custom_ids begin with ``names``.
    """
    with path.open("w") as opened:
        for number, prompt in enumerate(loads.prompts(count)):
            body = loads.chat(prompt, tokens)
            if padding:
                body["user"] = "x" * padding
            line = {"custom_id": f"{names}{number}", "method": "POST", "url": CHAT, "body": body}
            opened.write(json.dumps(line) + "\n")
    return path


# The processes of the sides. Each prints "ended" with the seconds and the growth of its memory.


def run_worker(model: str, source: str, folder: str) -> None:
    """Run a batch in a job of this worker, timed from the job to its end."""
    import handler  # noqa: PLC0415 - in the worker's process only
    from worker.app import Worker  # noqa: PLC0415 - the same
    from worker.settings.environment import environ_with_secrets  # noqa: PLC0415 - the same
    from worker.settings.sources import gather_settings  # noqa: PLC0415 - the same

    inbox = Path(folder) / "inbox"
    inbox.mkdir()
    (inbox / "input.jsonl").hardlink_to(source)
    write_input(inbox / "warm.jsonl", WARM_UP_LINES, TOKENS, names=WARM_UP_NAME)
    os.environ.update(
        MODEL_NAME=model,
        FILES_PATH=folder,
        MAX_MODEL_LEN=str(MAX_MODEL_LEN),
        MAX_NUM_SEQS=str(SLOTS),
    )

    async def run(worker: Worker, name: str) -> None:
        batch = {"input_path": f"inbox/{name}", "endpoint": CHAT, "max_runtime_sec": 24 * 3600}
        job = {"id": name, "input": {"batch": batch}}
        (answer,) = [chunk async for chunk in worker.handle(job)]
        if answer.get("batch", {}).get("status") != "completed":
            raise Lost(f"the batch is {answer}")

    async def main(worker: Worker) -> None:
        await run(worker, "warm.jsonl")
        await measure_here(run(worker, "input.jsonl"))

    with handler.start_engines(gather_settings(environ_with_secrets())) as (engines, settings):
        asyncio.run(main(Worker(engines, settings)))


def run_vllm(model: str, source: str, folder: str) -> None:
    """Run a batch with vLLM's run_batch, timed from the started engine to the output."""
    from vllm.entrypoints.launchers import run_batch  # noqa: PLC0415 - slow
    from vllm.entrypoints.launchers.api_server.entry import (  # noqa: PLC0415 - slow
        build_async_engine_client,
    )
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415 - slow

    def arguments(source: str, folder: str) -> Any:
        options = {
            "-i": source,
            "-o": f"{folder}/output.jsonl",
            "--model": model,
            "--dtype": "float32",
            "--distributed-executor-backend": "uni",
            "--max-model-len": MAX_MODEL_LEN,
            "--max-num-seqs": SLOTS,
        }
        words = [str(word) for pair in options.items() for word in pair]
        return run_batch.make_arg_parser(FlexibleArgumentParser()).parse_args(
            [*words, "--enforce-eager", "--disable-log-stats"]
        )

    async def main() -> None:
        args = arguments(source, folder)
        async with build_async_engine_client(args) as engine:
            with tempfile.TemporaryDirectory() as scratch:
                path = Path(scratch) / "input.jsonl"
                warm_up = write_input(path, WARM_UP_LINES, TOKENS, names=WARM_UP_NAME)
                await run_batch.run_batch(engine, arguments(str(warm_up), scratch))
            await measure_here(run_batch.run_batch(engine, args))

    asyncio.run(main())


async def measure_here(running: Awaitable[object]) -> None:
    """Print "ended" with the seconds and MB that something takes in this process."""
    before_mb = _memory_mb("VmRSS")
    # Resets the recorded maximum.
    Path("/proc/self/clear_refs").write_text("5")  # noqa: ASYNC240 - nothing else runs yet
    start = time.perf_counter()
    await running
    print_line("ended", time.perf_counter() - start, _memory_mb("VmHWM") - before_mb)


def _memory_mb(name: str) -> float:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None, "this needs Linux"
    return int(found[1]) / 1000


SIDES = {"worker": run_worker, "run_batch": run_vllm}


@dataclass(frozen=True)
class Figures:
    """Milliseconds of the requests of a caller without pauses, and threads of the worker."""

    p50: float
    maximum: float
    threads: int

    def __str__(self) -> str:
        return f"p50 {self.p50:.1f}, max {self.maximum:.0f} ms, {self.threads} threads"


async def measure_sides(source: Path, lines: int, rounds: int) -> dict[str, list[list[float]]]:
    """Return the seconds without the startup and the MB of growth of each side and round."""
    results: dict[str, list[list[float]]] = {side: [] for side in SIDES}
    for _, side in turns(SIDES, rounds):
        output = make_folder(source.parent)
        arguments = ("--side", side, str(source), str(output))
        command = (sys.executable, "-u", __file__, *arguments)
        async with run_process(command, ENVIRON, quiet=True) as process:
            _, *figures = await next_line(process, "ended")
        if (answered := count_answers(output)) != lines:
            raise Lost(f"{side}: {answered} of {lines} lines have an answer")
        results[side].append([float(figure) for figure in figures])
    return results


def make_folder(parent: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=parent))


def count_answers(folder: Path) -> int:
    """Return the number of complete successful answers in a folder of either side."""
    names: set[str] = set()
    for found in (*folder.rglob("*.jsonl"), *folder.rglob("content")):
        text = found.read_bytes()
        for line in text[: text.rfind(b"\n") + 1].splitlines():
            answer = json.loads(line)
            good = (answer.get("response") or {}).get("status_code") == 200
            if good and not answer["custom_id"].startswith(WARM_UP_NAME):
                names.add(answer["custom_id"])
    return len(names)


async def throughput(args: argparse.Namespace, folder: Path) -> bool:
    source = write_input(folder / "input.jsonl", args.lines, TOKENS)
    results = await measure_sides(source, args.lines, args.rounds)
    speeds = {side: [args.lines / seconds for seconds, _ in results[side]] for side in SIDES}
    ratios = [ours / vllm for ours, vllm in zip(*speeds.values(), strict=True)]
    print(f"{args.lines:,} lines of {TOKENS} tokens; lines per second")
    for side in SIDES:
        print_row(side, speeds[side])
    print_row("ratio", ratios, digits=2)
    return print_goal("throughput", median(ratios) >= THROUGHPUT, f">= {THROUGHPUT}")


async def memory(args: argparse.Namespace, folder: Path) -> bool:
    count = args.megabytes * 1_000_000 // LONG_BYTES
    source = write_input(folder / "input.jsonl", count, 1, LONG_BYTES)
    results = await measure_sides(source, count, args.rounds)
    growths = {side: [growth for _, growth in results[side]] for side in SIDES}
    print(f"{count:,} lines of {LONG_BYTES:,} bytes; MB of growth")
    for side in SIDES:
        print_row(side, growths[side])
    return print_goal("memory", median(growths["worker"]) < GROWTH_MB, f"< {GROWTH_MB} MB")


async def many(args: argparse.Namespace, folder: Path) -> bool:
    seconds, is_met = args.seconds, True
    print(f"{seconds:g} s of one caller: without other work, and next to many batches")
    for _ in range(args.rounds):
        alone, busy = await measure_queue(make_folder(folder), seconds, 180, 100)
        print(f"queue: {alone}; {busy}: {busy.p50 / alone.p50:.1f} x", flush=True)
        is_met &= busy.p50 <= 3 * alone.p50 and busy.maximum < 2_000
        alone, busy = await measure_queue(make_folder(folder), seconds, 1, 1_000, has_key=False)
        print(f"orphan: {alone}; {busy}: {busy.p50 / alone.p50:.1f} x", flush=True)
        is_met &= busy.p50 <= 1.5 * alone.p50
        alone, busy = await measure_server(make_folder(folder), seconds, 600)
        print(f"HTTP: {alone}; {busy}: {busy.p50 / alone.p50:.1f} x", flush=True)
        is_met &= busy.p50 <= 2 * alone.p50 and busy.threads <= alone.threads + 10
    return print_goal("many", is_met, "p50 <= 3 x, 1.5 x, 2 x, maximum < 2 s, threads <= 10 more")


async def measure_queue(
    folder: Path, seconds: float, batches: int, lines: int, *, has_key: bool = True
) -> tuple[Figures, Figures]:
    """Return the figures of jobs alone, and next to batches.

    With a key, the worker sends the jobs that run the batches. Without it, no job runs them, and
    the worker takes them up by itself.
    """
    environ = {"MODEL_NAME": str(bench.DEMO_MODEL), "BASE_PATH": str(folder)}
    if has_key:
        environ["BATCH_API_KEY"] = "local"
    async with start_endpoint(environ) as endpoint:
        pid = endpoint.processes[0].pid

        async def call() -> None:
            await endpoint.answer("Hi", SHORT_TOKENS)

        file = await run_route(endpoint, "/v1/files", batch_file(lines))
        await measure_calls(call, WARM_UP_S, pid)
        alone = await measure_calls(call, seconds, pid)
        batch = {"input_file_id": file["id"], "endpoint": COMPLETIONS}
        creating = (run_route(endpoint, "/v1/batches", batch) for _ in range(batches))
        await asyncio.gather(*creating)
        await asyncio.sleep(SETTLE_S if has_key else TAKE_UP_S)
        busy = await measure_calls(call, seconds, pid)
        if not [*(folder / "worker" / "batches").glob("*/leases/shard-0/lease-*")]:
            raise Lost("no batch was running at the end")
        return alone, busy


async def run_route(endpoint: Endpoint, route: str, body: dict[str, Any]) -> dict[str, Any]:
    job_input = {"route": route, "method": "POST", "body": body}
    job = endpoint.emulator.queue.submit({"input": job_input})
    await job.wait_for_end(60)
    if not job.output:
        raise Lost(f"{route} is {job.status}, with {job.error}")
    answer: dict[str, Any] = job.output[0]
    return answer


async def measure_server(folder: Path, seconds: float, batches: int) -> tuple[Figures, Figures]:
    """Return the figures of requests to --serve alone, and next to batches of one line each."""
    environ = {"MODEL_NAME": str(bench.DEMO_MODEL), "BASE_PATH": str(folder)}
    async with serve(environ) as (session, pid):

        async def post(route: str, body: dict[str, Any]) -> dict[str, Any]:
            async with session.post(route, json=body) as response:
                response.raise_for_status()
                answer: dict[str, Any] = await response.json()
                return answer

        async def call() -> None:
            short = {"prompt": "Hi", "max_tokens": SHORT_TOKENS, "ignore_eos": True}
            await post(COMPLETIONS, short)

        file = await post("/v1/files", batch_file(1))
        await measure_calls(call, WARM_UP_S, pid)
        alone = await measure_calls(call, seconds, pid)
        for _ in range(batches):
            await post("/v1/batches", {"input_file_id": file["id"], "endpoint": COMPLETIONS})
        return alone, await measure_calls(call, seconds, pid)


def batch_file(lines: int) -> dict[str, Any]:
    """Return the body of a request that stores a batch's input; each line is a long answer."""
    body = {"prompt": "Tell me.", "max_tokens": LONG_TOKENS, "ignore_eos": True}
    line = {"method": "POST", "url": COMPLETIONS, "body": body}
    content = "".join(json.dumps({**line, "custom_id": f"c{i}"}) + "\n" for i in range(lines))
    return {"purpose": "batch", "content": content}


async def measure_calls(call: Callable[[], Awaitable[object]], seconds: float, pid: int) -> Figures:
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        await call()
        times.append(1000 * (time.perf_counter() - start))
    return Figures(median(times), max(times), psutil.Process(pid).num_threads())


def print_row(title: str, values: Sequence[float], digits: int = 1) -> None:
    figures = (median(values), min(values), max(values))
    print(f"{title:14}" + "".join(f"{figure:12,.{digits}f}" for figure in figures), flush=True)


def print_goal(name: str, is_met: bool, condition: str) -> bool:
    print(f"{name}: goal {condition}: {'met' if is_met else 'MISSED'}")
    return is_met


PARTS = {"throughput": throughput, "memory": memory, "many": many}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        SIDES[sys.argv[2]](str(bench.DEMO_MODEL), *sys.argv[3:])
        sys.exit(0)
    parser = bench.options(__doc__)
    parser.add_argument("what", choices=PARTS)
    parser.add_argument("--lines", type=int, default=2_000)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30)
    options = parser.parse_args()
    print(f"{bench.machine()}; median, minimum and maximum of {options.rounds} rounds", flush=True)
    with tempfile.TemporaryDirectory(prefix="batch-") as scratch:
        is_goal_met = asyncio.run(PARTS[options.what](options, Path(scratch)))
    sys.exit(0 if is_goal_met else 1)
