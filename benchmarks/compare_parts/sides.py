"""The sides: the worker with a local platform, vLLM's own server, and the bare engine.

More sides are vLLM's server with its front end in Rust, and the same worker with the SDK's own
loop, for two releases of the SDK.
"""

import asyncio
import json
import os
import shlex
import socket
import sys
import time
from argparse import ArgumentTypeError
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import bench
import psutil

from compare_parts import http_load, usage
from compare_parts.conditions import Conditions
from compare_parts.figures import Figures, Load, Measurement, figures
from compare_parts.phases import Phase, record_phases
from emulator import faults_that_delay_posts
from job_loop.sdk import COMPATIBLE_VERSIONS

START_S = 180.0
NAME = "model"


class Side(Protocol):
    """A running side.

    Attributes:
        first_s: Seconds from its start to its first streamed token.
    """

    first_s: float

    async def run(self, load: Load) -> Measurement: ...

    def memory_mib(self) -> float: ...


@dataclass
class HttpSide:
    """A side that is called over HTTP."""

    base: str
    process: Process
    first_s: float

    async def run(self, load: Load) -> Measurement:
        before = self._cpu_s()
        answers = await http_load.answers(self.base, NAME, load)
        cpu = {
            name: 1000 * (after - before[name]) / load.requests
            for name, after in self._cpu_s().items()
        }
        return Measurement(figures(answers, **cpu), answers[0].since_sent())

    def memory_mib(self) -> float:
        return usage.memory_mib(self.process.pid)

    def _cpu_s(self) -> dict[str, float]:
        times = psutil.Process().cpu_times()
        return {
            "own_cpu": usage.cpu_s(self.process.pid),
            "client_cpu": times.user + times.system,
        }


@dataclass
class WorkerSide(HttpSide):
    """The worker, with a local platform between it and the callers.

    Args:
        platform: The process of the platform.
        control: URL of the platform's control routes.
        phases: The phases of the worker's startup.
    """

    platform: Process
    control: str
    phases: dict[str, Phase]

    async def run(self, load: Load) -> Measurement:
        before = await self._posts()
        measured = await super().run(load)
        posts = (await self._posts() - before) / load.requests
        return replace(measured, figures=replace(measured.figures, posts=posts))

    async def delay_posts(self, delay_s: float) -> None:
        """Delay each of the worker's POSTs as on a slow link."""
        url = f"{self.control}/faults"
        async with aiohttp.ClientSession(raise_for_status=True) as client:
            await client.delete(url)
            for fault in faults_that_delay_posts(delay_s):
                await client.post(url, json=fault.model_dump(mode="json", exclude_defaults=True))

    def _cpu_s(self) -> dict[str, float]:
        return {**super()._cpu_s(), "platform_cpu": usage.cpu_s(self.platform.pid)}

    async def _posts(self) -> int:
        url = f"{self.control}/workers"
        async with aiohttp.ClientSession() as client, client.get(url) as response:
            (worker,) = (await response.json())["workers"]
        return int(worker["chunks"] + worker["results"])


@dataclass
class BareSide:
    """The engine, called in its own process."""

    process: Process
    first_s: float

    async def run(self, load: Load) -> Measurement:
        assert self.process.stdin is not None  # for the type checker
        before = usage.cpu_s(self.process.pid)
        self.process.stdin.write(json.dumps(vars(load)).encode() + b"\n")
        _, output = await bench.next_line(self.process, "measured")
        cpu = 1000 * (usage.cpu_s(self.process.pid) - before) / load.requests
        computed, arrivals = json.loads(output)
        return Measurement(Figures(**{**computed, "own_cpu": cpu}), [(at, n) for at, n in arrivals])

    def memory_mib(self) -> float:
        return usage.memory_mib(self.process.pid)


StartSide = Callable[[Path, Conditions], AbstractAsyncContextManager[Side]]
HANDLER = (sys.executable, "-u", str(bench.ROOT / "src" / "handler.py"))
PYTHONPATH = {"PYTHONPATH": f"{bench.ROOT / 'benchmarks'}:{bench.ROOT / 'src'}"}
# vLLM's variable for the program of its front end in Rust, which only its wheels for GPUs contain.
RUST_PROGRAM = "VLLM_RUST_FRONTEND_PATH"
RUST = {"VLLM_USE_RUST_FRONTEND": "1"}


def worker_settings(model: Path, engine: Mapping[str, Any]) -> dict[str, str]:
    """Return a worker's settings for a model and options of its engine."""
    return {
        "MODEL_NAME": str(model),
        "OPENAI_SERVED_MODEL_NAME_OVERRIDE": NAME,
        **{name.upper(): str(int(v) if v is True else v) for name, v in engine.items()},
    }


def server_command(
    model: Path, port: int, conditions: Conditions, *, rust: bool = False
) -> list[str]:
    """Return the command of vLLM's server for a model."""
    module = "compare_parts.serve" if rust else "vllm.entrypoints.openai.api_server"
    command = [sys.executable, "-m", module, "--model", str(model)]
    command += ["--served-model-name", NAME, "--port", str(port), *conditions.server_flags]
    for name, value in conditions.engine.items():
        flag = f"--{name.replace('_', '-')}"
        command += [flag] if value is True else [flag, str(value)]
    return command


async def _read_worker_environ(platform: Process) -> dict[str, str]:
    """Return the worker's environment, which the local platform prints as lines for a shell."""
    environ: dict[str, str] = {}
    while "RUNPOD_ENDPOINT_BASE_URL" not in environ:
        _, assignment = await bench.next_line(platform, "export ")
        name, value = assignment.split("=", 1)
        (environ[name],) = shlex.split(value)
    return environ


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


async def first_token(base: str, process: Process) -> float:
    """Return the time of a stream's first token; retry until the side accepts connections.

    Raises:
        bench.Lost: If the process exits, or a response is an error.
        TimeoutError: If it takes too long.
    """
    body = http_load.body(NAME, "Hi", Load(1, 1, 2))
    timeout = aiohttp.ClientTimeout(total=START_S)
    async with aiohttp.ClientSession(timeout=timeout) as client, asyncio.timeout(START_S):
        while process.returncode is None:
            try:
                async with client.post(f"{base}/chat/completions", json=body) as response:
                    if response.status != 200:
                        raise bench.Lost(f"{response.status}: {await response.text()}")
                    await response.content.readany()
                    return time.monotonic()
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(0.02)
    raise bench.Lost("a side did not start")


@asynccontextmanager
async def worker(
    model: Path, conditions: Conditions, command: Sequence[str] = HANDLER
) -> AsyncIterator[Side]:
    """Run the worker as in production, with a local platform in a separate process."""
    port, worker_port = free_port(), free_port()
    ports = ("--port", str(port), "--worker-port", str(worker_port))
    emulator = (sys.executable, "-m", "emulator", *ports)
    async with bench.run_process(emulator, PYTHONPATH, quiet=True) as platform:
        settings = await _read_worker_environ(platform)
        settings |= worker_settings(model, conditions.engine)
        began = time.monotonic()
        environ = {**conditions.environ, **settings, **PYTHONPATH}
        running = bench.run_process(command, environ, merged=True)
        async with running as process, record_phases(process, began) as phases:
            address = f"http://127.0.0.1:{port}"
            base = f"{address}/v2/local/openai/v1"
            first_s = await first_token(base, process) - began
            yield WorkerSide(base, process, first_s, platform, f"{address}/control", phases)


@asynccontextmanager
async def server(model: Path, conditions: Conditions, *, rust: bool = False) -> AsyncIterator[Side]:
    """Run vLLM's own server, with its front end in Python or in Rust."""
    port = free_port()
    command = server_command(model, port, conditions, rust=rust)
    began = time.monotonic()
    environ = {**conditions.environ, **(RUST | PYTHONPATH if rust else {})}
    async with bench.run_process(command, environ, quiet=True, stdout=DEVNULL) as process:
        base = f"http://127.0.0.1:{port}/v1"
        yield HttpSide(base, process, await first_token(base, process) - began)


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
    async with bench.run_process(command, environ, quiet=True, stdin=PIPE) as process:
        await bench.next_line(process, "started")
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
    "rust": partial(server, rust=True),
}
SIDES |= {
    name: partial(worker, command=(str(python), "-u", "-m", "compare_parts.sdk_loop"))
    for name, python in SDK_PYTHONS.items()
}
