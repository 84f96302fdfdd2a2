"""Compares the worker with vLLM's own server under the load of a GPU, on a machine without one.

    PYTHONPATH=benchmarks python -m gpu_load [--rounds 3] [--json FILE] [--loads LOAD ...]
        [--only worker server rust]
    PYTHONPATH=benchmarks python -m gpu_load --read FILE [FILE ...]

Only the forward pass is simulated (`core.py`): a step of the core takes as long as a GPU would, by
the clock, and its tokens are written in advance. Everything else is real, on both sides: vLLM's
scheduler, its cache of blocks and its messages, tokenizers, parsers, and the whole front, which is
the worker or vLLM's server (`--only rust`: with its front end in Rust, see `compare.py`). The
callers are a process that does little for each token. The worker gets jobs from it and posts chunks
to it; vLLM's server gets requests.

Pace is the tokens per second of a stream, relative to the nominal pace of the core. If a front
keeps it, its callers wait only for the GPU. The ceiling is 64 streams of 500 tokens/s, which take a
whole CPU core of vLLM's server. The prompts have 2,000 tokens, most of them in common, and those of
short requests 100. For raw loads, the worker gets raw jobs, and the others chats. After each load,
the streams are cancelled. A round takes about 10 minutes.
"""

import asyncio
import json
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import bench
import compare

from emulator import Emulator, Options
from gpu_load.loads import LOADS, WARM_UP, Load, chat_body, job_input
from gpu_load.pacing import RECORDS_VARIABLE, core_figures, read_records
from proof.measure import sides
from proof.measure.comparison import Groups, Round
from proof.measure.processes import cpu_s, next_line, run_process
from proof.measure.sides import HANDLER, NAME, START_S, Conditions, HttpSide

# The same engine for both sides, with the values of a GPU where a CPU has others.
ENGINE: dict[str, Any] = {
    "block_size": 32,
    "distributed_executor_backend": "gpu_load.core.ScriptedExecutor",
    "dtype": "float16",
    "enable_auto_tool_choice": True,
    "enforce_eager": True,
    "max_model_len": 8192,
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 1024,
    "tool_call_parser": "hermes",
}
PYTHONPATH = {"PYTHONPATH": f"{bench.ROOT / 'benchmarks'}:{bench.ROOT / 'src'}"}
ONE_THREAD = compare.CONDITIONS["one-thread"]
# The core computes nothing, so the model's own context does not matter.
VARIABLES = {**ONE_THREAD.environ, **PYTHONPATH, "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
# Settings of the worker that vLLM's server does not have.
WORKER_SETTINGS = {"ALLOWED_XARGS": "pace,tool", "MAX_CONCURRENCY": "auto"}
# Maximum CPU seconds per second of a side without a request.
IDLE_CPU_S = 0.1

# Titles of the table's columns, with the name of a figure and its number of decimal places.
COLUMNS = {
    "tokens/s": ("tokens_per_s", 0),
    "pace": ("pace", 2),
    "first token p50, ms": ("first_p50", 0),
    "gap between tokens p99, ms": ("gap_p99", 0),
    "CPU cores of the front": ("front_cores", 2),
    "core without requests, ms/s": ("core_idle_ms", 1),
}
# Figures that whole answers don't have.
STREAMED = {"pace", "first_p50", "gap_p99"}


@dataclass(frozen=True)
class Side:
    """A running side.

    Args:
        model: Directory of its model.
        front: The process with the API, whose child is the core.
        callers: The process of the callers.
        records: File of the core's records.
        gets_jobs: Whether the callers are its platform.
    """

    model: Path
    front: Process
    callers: Process
    records: Path
    gets_jobs: bool

    async def run(self, load: Load) -> dict[str, float]:
        """Return the figures of a load.

        Raises:
            Lost: If an answer is an error, lacks tokens or does not end.
        """
        request = chat_body(load, NAME, self.model)
        if self.gets_jobs:
            request = job_input(load, request)
        assert self.callers.stdin is not None  # for the type checker
        order = json.dumps([asdict(load), json.dumps(request)])
        self.callers.stdin.write(order.encode() + b"\n")
        await next_line(self.callers, "begin")
        before = self._cpu_s()
        await next_line(self.callers, "end")
        after = self._cpu_s()
        _, output = await next_line(self.callers, "measured")
        figures: dict[str, float] = json.loads(output)
        began, ended = figures.pop("began"), figures.pop("ended")
        cores = {name: (after[name] - before[name]) / (ended - began) for name in before}
        # Until the side has cancelled all requests, and sends nothing any more.
        before_s = 0.0
        while (used_s := cpu_s(self.front.pid)) - before_s > IDLE_CPU_S:
            before_s = used_s
            await asyncio.sleep(1)
        core = core_figures(read_records(self.records), began, ended)
        core["core_pace"] = core.pop("steps_per_s") / load.pace
        return {**figures, **cores, **core}

    def _cpu_s(self) -> dict[str, float]:
        core = cpu_s(read_records(self.records)[-1].pid)
        return {
            "front_cores": cpu_s(self.front.pid) - core,
            "core_cores": core,
            "callers_cores": cpu_s(self.callers.pid),
        }


@contextmanager
def _records() -> Iterator[tuple[Path, dict[str, str]]]:
    """Return a file for the core's records, and the environment of a front with such a core."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "records.jsonl")
        yield file, {**VARIABLES, RECORDS_VARIABLE: str(file)}


def _run_callers(kind: str, port: int) -> AbstractAsyncContextManager[Process]:
    command = (sys.executable, "-m", "gpu_load.callers", kind, str(port))
    return run_process(command, PYTHONPATH, stdin=PIPE)


@asynccontextmanager
async def start_worker(model: Path) -> AsyncIterator[Side]:
    """Run the worker as in production, with the callers as its platform."""
    port = sides.free_port()
    # The emulator only supplies the variables: it is not started.
    platform = Emulator(Options(worker_port=port)).worker_environ()
    settings = {**platform, **sides.worker_settings(model, ENGINE), **WORKER_SETTINGS}
    with _records() as (records, environ):
        running = run_process(HANDLER, {**environ, **settings}, quiet=True, stdout=DEVNULL)
        async with _run_callers("platform", port) as callers, running as front:
            # The core works for the first time when the worker warms up.
            async with asyncio.timeout(START_S):
                while front.returncode is None and not records.exists():  # noqa: ASYNC110 - another process writes it
                    await asyncio.sleep(0.1)
            yield Side(model, front, callers, records, gets_jobs=True)


@asynccontextmanager
async def start_server(
    model: Path, start: Callable[[Path, Conditions], AbstractAsyncContextManager[HttpSide]]
) -> AsyncIterator[Side]:
    with _records() as (records, environ):
        conditions = replace(ONE_THREAD, engine=ENGINE, environ=environ)
        async with start(model, conditions) as side:
            port = int(side.base.rpartition(":")[2].partition("/")[0])
            async with _run_callers("clients", port) as callers:
                yield Side(model, side.process, callers, records, gets_jobs=False)


SIDES: dict[str, Callable[[Path], AbstractAsyncContextManager[Side]]] = {
    "worker": start_worker,
    "server": lambda model: start_server(model, sides.server),
    "rust": lambda model: start_server(model, sides.rust_server),
}


async def measure(name: str, model: Path, loads: Iterable[str]) -> Round:
    """Start a side, and measure it with all loads."""
    async with SIDES[name](model) as side:
        await side.run(WARM_UP)
        return Round({load: await side.run(LOADS[load]) for load in loads})


def table(found: Mapping[str, Groups]) -> str:
    """Return a table with a row for each load, and in each cell the figures of all sides."""
    lines = [_line("streams", COLUMNS), _line("---", ["---"] * len(COLUMNS))]
    for name, load in LOADS.items():
        if not all(name in groups for groups in found.values()):
            continue
        cells = []
        for figure, digits in COLUMNS.values():
            # The callers count no tokens of whole answers, and only a part of a tool's call.
            is_counted = figure != "tokens_per_s" or (load.stream and not load.calls_tool)
            source = figure if is_counted else f"core_{figure}"
            has_figure = load.stream or figure not in STREAMED
            values = [groups[name][source] for groups in found.values()] if has_figure else []
            cells.append(" / ".join(f"{value:,.{digits}f}" for value in values))
        lines.append(_line(name, cells))
    return "\n".join([*lines, "", f"Each cell: {' / '.join(found)}."])


def _line(title: str, cells: Iterable[str]) -> str:
    return f"| {title:22} | {' | '.join(cells)} |"


if __name__ == "__main__":
    parser = compare.make_parser(__doc__, SIDES, ("worker", "server"))
    parser.add_argument("--loads", nargs="+", choices=tuple(LOADS), default=list(LOADS))
    arguments = parser.parse_args()
    compare.run(
        arguments,
        ONE_THREAD.title,
        lambda name: measure(name, arguments.model, arguments.loads),
        table,
    )
