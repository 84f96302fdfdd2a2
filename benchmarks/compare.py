"""Compares the worker, including the platform, with vLLM's own server and the bare engine.

    python benchmarks/compare.py [--rounds 3] [--model .models/demo] [--json FILE] [--others]
        [--only worker server bare rust sdk-1.12 sdk-2.0] [--conditions one-thread|default]
    python benchmarks/compare.py --read FILE [FILE ...]

The worker runs as in production with the local platform, which is a separate process. vLLM's server
has no platform between itself and the callers. The bare engine is called in its own process. All
have the same engine settings. Each round starts each side again, in alternating order. Callers,
platform and side share the machine; the table also shows their shares of it. The medians of the
rounds and their ratios count; figures of different machines can't be compared.

By default all sides have one thread, one process in addition to the core, and few log lines. With
`--conditions default` each side chooses them itself; only the options of the engine are the same.
More sides are vLLM's server with its front end in Rust (`--only rust`; its program is in vLLM's
wheels for GPUs, and runs without one), and the same worker with the job loop of the SDK (`--only
sdk-…`).

After the loads of the table, a round has a sweep from one caller to 128, and one longer stream
whose token arrivals are stored; the worker also streams with delayed POSTs. `--others` runs other
benchmarks of this folder once, for the rows that they measure. The table is Markdown; `--read`
prints it again from the files of one or several runs, whose rounds are combined.
`builder/plots.py` draws the same files.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import aiohttp
import bench
import uvloop

from emulator import faults_that_delay_posts
from job_loop.sdk import COMPATIBLE_VERSIONS
from proof.measure import comparison as comparisons
from proof.measure import loads, sides
from proof.measure.comparison import Comparison, Groups, Round, Row, table, turns
from proof.measure.loads import Answer, Load, Measurement
from proof.measure.processes import (
    Lost,
    cpu_s,
    memory_mib,
    next_line,
    print_line,
    run_process,
)
from proof.measure.sides import Conditions, WorkerSide

# Conditions of all sides: the same engine, without compilation, and with the same size of the KV
# cache. With one thread, there is one process in addition to the core, and the worker still logs a
# line per request.
ENGINE: dict[str, Any] = {
    "dtype": "float16",
    "max_model_len": 1024,
    "max_num_seqs": 256,
    "enforce_eager": True,
}
CACHE = {"VLLM_CPU_KVCACHE_SPACE": "1"}
ONE_THREAD = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "OMP_NUM_THREADS": "1",
}
CONDITIONS = {
    "one-thread": Conditions(
        {**ENGINE, "distributed_executor_backend": "uni"},
        {**CACHE, **ONE_THREAD},
        "one thread a side",
        ("--disable-uvicorn-access-log",),
    ),
    "default": Conditions(ENGINE, CACHE, "each side's own threads, processes and log"),
}

# The loads of each side, in this order; the first one also warms up.
LOADS = {
    "warm-up": Load(callers=64, requests=128),
    # Enough requests that their p99 is not their maximum.
    "idle": Load(callers=1, requests=200),
    "16 streams": Load(callers=16, requests=160),
    "64 streams": Load(callers=64, requests=320),
    "64 whole": Load(callers=64, requests=320, stream=False),
}
# The loads of the sweep, by number of callers: so few requests that all of them take less than a
# minute on a CPU.
SWEEP = {2**power: f"sweep {2**power}" for power in range(8)}
LOADS |= {name: Load(callers, requests=max(8, 2 * callers)) for callers, name in SWEEP.items()}
ONE_STREAM = Load(callers=1, requests=1, tokens=200)
SLOW_LINK = Load(callers=1, requests=5, tokens=100)
# Milliseconds that are added to each POST of the worker.
POST_DELAYS_MS = (10, 50, 100)

ROWS = (
    Row("start to the first streamed token, s", "start", "first_s", max_ratio=0.4),
    Row("idle: first token p50, ms", "idle", "first_p50", max_ratio=1.2),
    Row("idle: first token p99, ms", "idle", "first_p99", max_ratio=1.5),
    Row("idle: 64 tokens p50, ms", "idle", "latency_p50", max_ratio=0.9),
    Row("16 streams: tokens/s", "16 streams", "tokens_per_s", min_ratio=1.0, digits=0),
    Row("64 streams: tokens/s", "64 streams", "tokens_per_s", min_ratio=1.0, digits=0),
    Row("64 streams: first token p50, ms", "64 streams", "first_p50", max_ratio=1.0),
    Row("64 streams: gap between tokens p99, ms", "64 streams", "gap_p99", max_value=120.0),
    Row("64 streams: CPU of the side, ms a request", "64 streams", "own_cpu", max_ratio=1.0),
    Row("64 streams: CPU of the platform, ms a request", "64 streams", "platform_cpu"),
    Row("64 streams: CPU of the callers, ms a request", "64 streams", "client_cpu"),
    Row("64 streams: share of the machine, side, %", "64 streams", "own_share", digits=0),
    Row("64 streams: share of the platform, %", "64 streams", "platform_share", digits=0),
    Row("64 streams: share of the callers, %", "64 streams", "client_share", digits=0),
    Row("64 streams: POSTs a stream", "64 streams", "posts"),
    Row("64 whole: requests/s", "64 whole", "requests_per_s", min_ratio=1.0, digits=0),
    Row("64 whole: CPU of the side, ms a request", "64 whole", "own_cpu", max_ratio=0.9),
    Row("64 whole: CPU of the platform, ms a request", "64 whole", "platform_cpu"),
    Row("64 whole: share of the machine, side, %", "64 whole", "own_share", digits=0),
    Row("64 whole: share of the platform, %", "64 whole", "platform_share", digits=0),
    Row("64 whole: share of the callers, %", "64 whole", "client_share", digits=0),
    Row("128 streams: tokens/s", SWEEP[128], "tokens_per_s", digits=0),
    Row("memory after all that (PSS), MiB", "start", "memory_mib", max_ratio=0.9, digits=0),
    Row("100 tokens, 10 ms a POST / without", "link", "10 ms", digits=2),
    Row("100 tokens, 50 ms a POST / without", "link", "50 ms", max_value=1.1, digits=2),
    Row("100 tokens, 100 ms a POST / without", "link", "100 ms", digits=2),
    *(
        Row(f"200 tokens, 5 ms apart, {delay} ms a POST / engine", "paced", f"{delay} 5", digits=2)
        for delay in (0, *POST_DELAYS_MS)
    ),
    Row("jobs that compute nothing, a second", "nothing", "jobs_per_s", digits=0),
    Row("compiled: first start, s", "compiled", "first"),
    Row("compiled: next start on the volume, s", "compiled", "next"),
    Row("prompts/s, all their own beginnings", "prefix", "distinct", digits=0),
    Row("prompts/s, 8 beginnings in common", "prefix", "shared", digits=0),
    Row("20,000 jobs: time a job, end / begin", "flat", "seconds", max_value=1.05, digits=2),
    Row("20,000 jobs: CPU a job, end / begin", "flat", "cpu_s", max_value=1.05, digits=2),
    Row("20,000 jobs: memory, end / begin", "flat", "memory_mb", max_value=1.05, digits=2),
    Row("20,000 jobs: open files, end / begin", "flat", "open_files", max_value=1.05, digits=2),
)


class Side(Protocol):
    """A running side, with the seconds from its start to its first streamed token."""

    first_s: float

    async def run(self, load: Load) -> Measurement: ...

    def memory_mib(self) -> float: ...


@dataclass
class BareSide:
    """The engine, called in its own process."""

    process: Process
    first_s: float

    async def run(self, load: Load) -> Measurement:
        assert self.process.stdin is not None  # for the type checker
        before = cpu_s(self.process.pid)
        self.process.stdin.write(json.dumps(vars(load)).encode() + b"\n")
        _, output = await next_line(self.process, "measured")
        cpu = 1000 * (cpu_s(self.process.pid) - before) / load.requests
        figures, arrivals = json.loads(output)
        figures |= loads.cpu_figures(figures["requests_per_s"], own=cpu)
        return Measurement(figures, [(at, n) for at, n in arrivals])

    def memory_mib(self) -> float:
        return memory_mib(self.process.pid)


@asynccontextmanager
async def start_bare(model: Path, conditions: Conditions) -> AsyncIterator[BareSide]:
    engine = json.dumps({"model": str(model), **conditions.engine})
    command = (sys.executable, __file__, "--engine", engine)
    began = time.monotonic()
    async with run_process(command, conditions.environ, quiet=True, stdin=PIPE) as process:
        await next_line(process, "started")
        yield BareSide(process, time.monotonic() - began)


async def run_bare_engine(engine_args: dict[str, Any]) -> None:
    """Run the engine without a server, in a process of its own.

    It prints "started". For each line of its input, which is a load, it prints the figures.
    """
    # Imported here because vLLM reads variables at import that the parent sets.
    from vllm import SamplingParams  # noqa: PLC0415 - see above
    from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415 - see above
    from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415 - see above
    from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415 - see above

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_args))

    async def answer(number: int, prompt: str, load: Load) -> Answer:
        kind = RequestOutputKind.DELTA if load.stream else RequestOutputKind.FINAL_ONLY
        params = SamplingParams(
            max_tokens=load.tokens, ignore_eos=True, temperature=0, output_kind=kind
        )
        result = Answer(time.perf_counter())
        text = engine.renderer.tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
        async for output in engine.generate(text, params, f"bare-{number}-{time.monotonic()}"):
            result.arrivals.append((time.perf_counter(), 1))
            result.tokens += len(output.outputs[0].token_ids)
        result.ended = time.perf_counter()
        return result

    await answer(0, "Hi", Load(1, 1, 1))
    print_line("started")
    while line := await asyncio.to_thread(sys.stdin.readline):
        load = Load(**json.loads(line))
        waiting = iter(enumerate(loads.prompts(load.requests)))
        answers: list[Answer] = []

        async def call(load: Load = load, waiting: Any = waiting, results: Any = answers) -> None:
            for number, prompt in waiting:
                results.append(await answer(number, prompt, load))

        await asyncio.gather(*(call() for _ in range(load.callers)))
        measured = [loads.figures(answers), answers[0].since_sent()]
        print_line("measured", json.dumps(measured, separators=(",", ":")))
    engine.shutdown()


# A worker whose jobs run on the loop of the SDK.
SDK_LOOP = """
import handler

run_sdk = handler.run_sdk

def run_sdk_loop(*arguments, **options):
    # Imported here, as in production, where this module is loaded while the engine starts.
    from job_loop import sdk

    sdk.is_compatible = lambda: False
    run_sdk(*arguments, **options)

handler.run_sdk = run_sdk_loop
handler.main()
"""


def start_sdk_worker(
    python: Path, model: Path, conditions: Conditions
) -> AbstractAsyncContextManager[Side]:
    """Run the worker with the job loop of the SDK that this Python has."""
    return sides.worker(model, conditions, (str(python), "-u", "-c", SDK_LOOP))


FIRST_SIDES = ("worker", "server", "bare")
SIDES: dict[str, Callable[[Path, Conditions], AbstractAsyncContextManager[Side]]] = {
    "worker": sides.worker,
    "server": sides.server,
    "bare": start_bare,
    "rust": sides.rust_server,
}
# The releases of the SDK with their interpreters: the newest, and the one that is installed here.
NEWEST_SDK = COMPATIBLE_VERSIONS.split()[-1]
SDK_PYTHONS = {
    f"sdk-{'.'.join(release.split('.')[:2])}": python
    for release, python in (
        (
            NEWEST_SDK,
            bench.ROOT / ".nox" / f"sdk-{NEWEST_SDK.replace('.', '-')}" / "bin" / "python",
        ),
        (version("runpod"), Path(sys.executable)),
    )
}
SIDES |= {name: partial(start_sdk_worker, python) for name, python in SDK_PYTHONS.items()}


async def measure(side_name: str, model: Path, conditions: Conditions) -> Round:
    """Start a side, and measure it with all loads."""
    results: Groups = {}
    async with SIDES[side_name](model, conditions) as side:
        for name, load in LOADS.items():
            results[name] = (await side.run(load)).figures
        results["start"] = {"first_s": side.first_s, "memory_mib": side.memory_mib()}
        stream = await side.run(ONE_STREAM)
        if not isinstance(side, WorkerSide):
            return Round(results, stream.arrivals)
        results["link"] = await measure_link(side)
        return Round(results, stream.arrivals, side.output.phases)


async def measure_link(side: WorkerSide) -> dict[str, float]:
    """Return the time of 100 tokens with delayed POSTs, relative to the time without delay."""
    latencies_ms = {}
    url = f"{side.control}/faults"
    async with aiohttp.ClientSession(raise_for_status=True) as client:
        for delay_ms in (0, *POST_DELAYS_MS):
            await client.delete(url)
            for fault in faults_that_delay_posts(delay_ms / 1000):
                await client.post(url, json=fault.model_dump(mode="json", exclude_defaults=True))
            latencies_ms[delay_ms] = (await side.run(SLOW_LINK)).figures["latency_p50"]
    return {
        f"{delay_ms} ms": latencies_ms[delay_ms] / latencies_ms[0] for delay_ms in POST_DELAYS_MS
    }


def run_others(model: Path) -> Groups:
    """Run other benchmarks, and return their figures for the rows of the table."""
    loop = run_other("loop.py --only nothing,flat --jobs 20000", model)
    streams = run_other("streaming.py")
    starts = run_other("cold_start.py --rounds 1", model)
    offline = run_other("offline.py", model)
    prefix = {name: median(values) for name, values in offline["prefix"].items()}
    return {
        "nothing": {"jobs_per_s": median(loop["nothing"]["jobs_per_s"])},
        "flat": loop["flat"]["ratios"],
        # The duration of each stream relative to its engine, by POST delay and engine pace.
        "paced": {
            f"{1000 * case['post_delay_s']:.0f} {1000 * case['pace_s']:.0f}": median(
                round_["stream_s"] / round_["engine_s"] for round_ in case["rounds"]
            )
            for case in streams
        },
        "compiled": {name: median(seconds) for name, seconds in starts["compiled"].items()},
        "prefix": {**prefix, "gain": prefix["shared"] / prefix["distinct"]},
    }


def run_other(command: str, model: Path | None = None) -> Any:
    """Run another benchmark, show its output, and return its figures.

    Raises:
        Lost: If it writes no figures.
    """
    file, *options = command.split()
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder, "figures.json")
        words = [sys.executable, str(bench.ROOT / "benchmarks" / file), *options]
        words += ["--json", str(figures), *(["--model", str(model)] if model else [])]
        # Its exit status is about its own goals, which the table repeats.
        subprocess.run(words, stdout=sys.stderr, check=False)
        if not figures.is_file():
            raise Lost(f"{file} wrote no figures")
        return json.loads(figures.read_text())


def side_table(found: Mapping[str, Groups]) -> str:
    """Return the table, whose first columns are ``FIRST_SIDES``."""
    names = [name for name in FIRST_SIDES if name in found]
    names += sorted(found.keys() - names)
    return table(ROWS, {name: found[name] for name in names})


# The command, whose options and output the comparison of `gpu_load` shares.


def make_parser(
    description: str | None, names: Iterable[str], first: Iterable[str]
) -> argparse.ArgumentParser:
    """Return a parser for comparisons of sides with these names; by default the first ones run."""
    parser = bench.options(description, writes_json=True)
    parser.add_argument("--model", type=bench.path, default=bench.DEMO_MODEL)
    parser.add_argument(
        "--only", nargs="+", type=parse_side, choices=tuple(names), default=list(first)
    )
    parser.add_argument(
        "--read",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="print the table of files instead of measuring",
    )
    return parser


def parse_side(name: str) -> str:
    """Return the name of a side from the command line.

    Raises:
        ArgumentTypeError: If vLLM's program in Rust, which only its wheels for GPUs contain, or the
            environment with the side's release of the SDK is missing.
    """
    variable = "VLLM_RUST_FRONTEND_PATH"
    if name == "rust" and not Path(os.environ.get(variable, "")).is_file():
        raise argparse.ArgumentTypeError(
            f"set {variable} to the file vllm/vllm-rs of a wheel for GPUs"
        )
    python = SDK_PYTHONS.get(name)
    if python and not python.exists():
        target = python.relative_to(bench.ROOT).parents[1] / "installed"
        raise argparse.ArgumentTypeError(
            f"{name} needs another release of the SDK: run `make {target}`"
        )
    return name


def run(
    arguments: argparse.Namespace,
    title: str,
    measure: Callable[[str], Awaitable[Round]],
    make_table: Callable[[Mapping[str, Groups]], str],
    others: Callable[[], list[Groups]] = list,
) -> None:
    """Compare sides, or read the files of comparisons, and print the table of their medians.

    Args:
        arguments: The command line.
        title: Description of the conditions.
        measure: Measures the side with a name once.
        make_table: Returns the table for the medians of the sides.
        others: Measures the figures of other benchmarks.
    """

    async def measure_rounds() -> dict[str, list[Round]]:
        rounds: dict[str, list[Round]] = {name: [] for name in arguments.only}
        for number, name in turns(arguments.only, arguments.rounds):
            rounds[name].append(await measure(name))
            print(f"round {number + 1}: {name}", file=sys.stderr, flush=True)
        return rounds

    if arguments.read:
        comparison = comparisons.read(arguments.read)
    else:
        machine, found = [bench.machine()], others()
        rounds = asyncio.run(measure_rounds())
        comparison = Comparison(machine, arguments.model.name, title, rounds, found)
        bench.write_json(arguments.json, comparisons.FILE_FORMAT.dump_python(comparison))
    print(make_table(comparison.sides()))
    count = max(map(len, comparison.rounds.values()))
    words = [f"model {comparison.model}", comparison.conditions, *comparison.machine]
    print(f"\nMedians of {count}; {'; '.join(words)}")


def main() -> None:
    parser = make_parser(__doc__, SIDES, FIRST_SIDES)
    parser.add_argument("--conditions", choices=tuple(CONDITIONS), default="one-thread")
    parser.add_argument(
        "--others", action="store_true", help="also run other benchmarks for their rows"
    )
    parser.add_argument("--engine", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine:
        uvloop.run(run_bare_engine(arguments.engine))
        return
    if arguments.others and arguments.conditions != "one-thread":
        parser.error("--others runs benchmarks with threads of their own, so omit --conditions")
    # Otherwise variables of this shell would change the defaults of the sides.
    for name in CONDITIONS["one-thread"].environ:
        os.environ.pop(name, None)
    model, conditions = arguments.model, CONDITIONS[arguments.conditions]
    run(
        arguments,
        conditions.title,
        lambda name: measure(name, model, conditions),
        side_table,
        lambda: [run_others(model)] if arguments.others else [],
    )


if __name__ == "__main__":
    main()
