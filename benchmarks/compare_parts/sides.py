"""More sides: the bare engine, vLLM's front end in Rust, and the worker with the SDK's own loop."""

import json
import os
import sys
import time
from argparse import ArgumentTypeError
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import bench

from job_loop.sdk import COMPATIBLE_VERSIONS
from proof.measure import usage
from proof.measure.figures import Figures, Load, Measurement
from proof.measure.processes import next_line, run_process
from proof.measure.sides import Conditions, Side, server, worker


@dataclass
class BareSide:
    """The engine, called in its own process."""

    process: Process
    first_s: float

    async def run(self, load: Load) -> Measurement:
        assert self.process.stdin is not None  # for the type checker
        before = usage.cpu_s(self.process.pid)
        self.process.stdin.write(json.dumps(vars(load)).encode() + b"\n")
        _, output = await next_line(self.process, "measured")
        cpu = 1000 * (usage.cpu_s(self.process.pid) - before) / load.requests
        computed, arrivals = json.loads(output)
        return Measurement(Figures(**{**computed, "own_cpu": cpu}), [(at, n) for at, n in arrivals])

    def memory_mib(self) -> float:
        return usage.memory_mib(self.process.pid)


StartSide = Callable[[Path, Conditions], AbstractAsyncContextManager[Side]]
PYTHONPATH = {"PYTHONPATH": f"{bench.ROOT / 'benchmarks'}:{bench.ROOT / 'src'}"}
# vLLM's variable for the program of its front end in Rust, which only its wheels for GPUs contain.
RUST_PROGRAM = "VLLM_RUST_FRONTEND_PATH"
RUST_SERVER = "compare_parts.serve"
RUST = {"VLLM_USE_RUST_FRONTEND": "1", **PYTHONPATH}


def rust(model: Path, conditions: Conditions) -> AbstractAsyncContextManager[Side]:
    """Run vLLM's own server with its front end in Rust."""
    environ = {**conditions.environ, **RUST}
    return server(model, replace(conditions, environ=environ), RUST_SERVER)


def sdk_worker(
    python: Path, model: Path, conditions: Conditions
) -> AbstractAsyncContextManager[Side]:
    """Run the worker with the job loop of the SDK that this Python has."""
    environ = {**conditions.environ, **PYTHONPATH}
    command = (str(python), "-u", "-m", "compare_parts.sdk_loop")
    return worker(model, replace(conditions, environ=environ), command)


@asynccontextmanager
async def bare(model: Path, conditions: Conditions) -> AsyncIterator[Side]:
    """Run the engine in a process that calls it."""
    command = (
        sys.executable,
        "-m",
        "compare_parts.bare",
        json.dumps({"model": str(model), **conditions.engine}),
    )
    environ = {**conditions.environ, **PYTHONPATH}
    began = time.monotonic()
    async with run_process(command, environ, quiet=True, stdin=PIPE) as process:
        await next_line(process, "started")
        yield BareSide(process, time.monotonic() - began)


def _sdk_pythons() -> dict[str, Path]:
    """Return the sides with the SDK's own loop, and the interpreters of their releases."""
    newest = COMPATIBLE_VERSIONS.split()[-1]
    pythons = {newest: bench.ROOT / ".sdk" / newest / "bin" / "python"}
    pythons[version("runpod")] = Path(sys.executable)
    return {f"sdk-{'.'.join(release.split('.')[:2])}": each for release, each in pythons.items()}


def parse_side(name: str) -> str:
    """Return the name of a side from the command line.

    Raises:
        ArgumentTypeError: If the environment with its release of the SDK, or vLLM's program in
            Rust, is missing.
    """
    if name == "rust" and not Path(os.environ.get(RUST_PROGRAM, "")).is_file():
        raise ArgumentTypeError(f"set {RUST_PROGRAM} to the file vllm/vllm-rs of a wheel for GPUs")
    python = SDK_PYTHONS.get(name)
    if python and not python.exists():
        target = python.relative_to(bench.ROOT).parents[1] / "installed"
        raise ArgumentTypeError(f"{name} needs another release of the SDK: run `make {target}`")
    return name


SDK_PYTHONS = _sdk_pythons()
SIDES: dict[str, StartSide] = {
    "worker": worker,
    "server": server,
    "bare": bare,
    "rust": rust,
}
SIDES |= {name: partial(sdk_worker, python) for name, python in SDK_PYTHONS.items()}
