"""The sides: the worker with a local platform, and vLLM's own server."""

import asyncio
import json
import re
import shlex
import socket
import sys
import time
from asyncio.subprocess import Process
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from proof.measure import loads
from proof.measure.comparison import Groups
from proof.measure.loads import Load, Measurement
from proof.measure.processes import ROOT, Lost, cpu_s, memory_mib, next_line, run_process

START_S = 180.0
NAME = "model"
HANDLER = (sys.executable, "-u", str(ROOT / "src" / "handler.py"))
EMULATOR = (sys.executable, "-m", "emulator")
SERVER = ("-m", "vllm.entrypoints.openai.api_server")
# `vllm serve`, also of vLLM's package for CPUs, whose own command doesn't start.
SERVE = (
    "-c",
    "from vllm.entrypoints.cli.serve import ServeSubcommand, make_arg_parser\n"
    "from vllm.utils.argparse_utils import FlexibleArgumentParser\n"
    "ServeSubcommand.cmd(make_arg_parser(FlexibleArgumentParser()).parse_args())",
)
PYTHONPATH = {"PYTHONPATH": str(ROOT / "src")}
PHASE = re.compile(r"start-up: (\S+)\s+([0-9.]+) s")


@dataclass(frozen=True)
class Conditions:
    """Conditions that are the same on all sides."""

    engine: Mapping[str, Any]
    environ: Mapping[str, str]  # variables of the side's process
    title: str = ""  # for the output
    server_flags: tuple[str, ...] = ()  # which only vLLM's server has
    start_s: float = START_S  # until the first token


@dataclass(frozen=True)
class Output:
    """The output of a side so far."""

    # Those of a worker's startup: seconds from the start of the process to begin and end of each.
    phases: Groups = field(default_factory=dict)
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=20))
    ended: asyncio.Event = field(default_factory=asyncio.Event)  # set when the output has ended


@asynccontextmanager
async def read_output(process: Process, began: float) -> AsyncIterator[Output]:
    """Read a process's piped output during the block; ``began`` is a monotonic time."""
    output = Output()
    reading = asyncio.create_task(_read(process, began, output))
    try:
        yield output
    finally:
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading


async def _read(process: Process, began: float, output: Output) -> None:
    assert process.stdout is not None  # for the type checker
    rest = b""
    # In blocks, because a busy worker logs a line for each job.
    while block := await process.stdout.read(2**16):
        *lines, rest = (rest + block).split(b"\n")
        for line in (each.decode(errors="replace") for each in lines):
            output.last_lines.append(line)
            if match := PHASE.search(line):
                # A phase is logged when it ends.
                end = time.monotonic() - began
                begin = end - float(match[2])
                output.phases[match[1]] = {"begin": round(begin, 3), "end": round(end, 3)}
    output.ended.set()


@dataclass
class HttpSide:
    """A running side that is called over HTTP."""

    base: str  # URL of its OpenAI API
    process: Process
    first_s: float  # from its start to its first streamed token
    output: Output = field(default_factory=Output)

    async def run(self, load: Load, models: Sequence[str] = (NAME,)) -> Measurement:
        """Run a load whose requests name one of the models in turn."""
        before = self._cpu_s()
        answers = await loads.send(self.base, models, load)
        cpu = {
            name: 1000 * (after - before[name]) / load.requests
            for name, after in self._cpu_s().items()
        }
        return Measurement(loads.figures(answers, **cpu), answers[0].since_sent())

    def memory_mib(self) -> float:
        return memory_mib(self.process.pid)

    def _cpu_s(self) -> dict[str, float]:
        times = psutil.Process().cpu_times()
        # Those of the callers' processes are included when they have ended.
        ended = times.children_user + times.children_system
        return {
            "own": cpu_s(self.process.pid),
            "client": times.user + times.system + ended,
        }


@dataclass(kw_only=True)
class WorkerSide(HttpSide):
    """The worker, with a local platform between it and the callers."""

    platform: Process
    control: str  # URL of the platform's control routes
    endpoint: str  # URL of the endpoint, for jobs

    async def run(self, load: Load, models: Sequence[str] = (NAME,)) -> Measurement:
        before = await self._posts()
        measured = await super().run(load, models)
        posts = (await self._posts() - before) / load.requests
        return replace(measured, figures=measured.figures | {"posts": round(posts, 3)})

    def _cpu_s(self) -> dict[str, float]:
        return {**super()._cpu_s(), "platform": cpu_s(self.platform.pid)}

    async def _posts(self) -> int:
        url = f"{self.control}/workers"
        async with aiohttp.ClientSession() as client, client.get(url) as response:
            (worker,) = (await response.json())["workers"]
        return int(worker["chunks"] + worker["results"])


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@asynccontextmanager
async def start_side(
    command: Sequence[str], environ: Mapping[str, str], base: str, limit_s: float = START_S
) -> AsyncIterator[HttpSide]:
    """Start a side and wait for its first token; a ``Lost`` has the last lines of its output."""
    began = time.monotonic()
    running = run_process(command, environ, merged=True)
    async with running as process, read_output(process, began) as output:
        try:
            first_s = await first_token(base, process, limit_s) - began
        except (Lost, TimeoutError) as error:
            # A child that is still running may prevent the end.
            with suppress(TimeoutError):
                await asyncio.wait_for(output.ended.wait(), 1)
            reason = str(error) or f"no token within {limit_s:.0f} s"
            raise Lost(reason, output.last_lines) from None
        yield HttpSide(base, process, first_s, output)


async def first_token(base: str, process: Process, limit_s: float) -> float:
    """Return the time of a stream's first token; retry until the side accepts connections.

    Raises:
        Lost: If the process exits, or a response is an error.
        TimeoutError: If it takes too long.
    """
    async with asyncio.timeout(limit_s):
        tasks = [asyncio.create_task(each) for each in (_first_token(base), process.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        if tasks[0].done():
            return tasks[0].result()
    raise Lost(f"the side exited with status {process.returncode} before its first token")


async def _first_token(base: str) -> float:
    body = loads.body(NAME, "Hi", Load(1, 1, 2))
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout) as client:
        while True:
            try:
                async with client.post(f"{base}/chat/completions", json=body) as response:
                    if response.status != 200:
                        raise Lost(f"{response.status}: {await response.text()}")
                    async for part in response.content.iter_any():
                        if loads.IDS.search(part):
                            return time.monotonic()
                    raise Lost("the first stream has no token")
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.02)


def worker_settings(model: Path, engine: Mapping[str, Any]) -> dict[str, str]:
    settings = {"MODEL_NAME": str(model), "OPENAI_SERVED_MODEL_NAME_OVERRIDE": NAME}
    for name, value in engine.items():
        plain = int(value) if isinstance(value, bool) else value
        settings[name.upper()] = json.dumps(value) if isinstance(value, list) else str(plain)
    return settings


async def read_worker_environ(platform: Process) -> dict[str, str]:
    """Return the worker's environment, which the local platform prints as lines for a shell."""
    environ: dict[str, str] = {}
    while "RUNPOD_ENDPOINT_BASE_URL" not in environ:  # the last one
        _, assignment = await next_line(platform, "export ")
        name, value = assignment.split("=", 1)
        (environ[name],) = shlex.split(value)
    return environ


@asynccontextmanager
async def worker(
    model: Path, conditions: Conditions, command: Sequence[str] = HANDLER
) -> AsyncIterator[WorkerSide]:
    """Run the worker as in production, with a local platform in a separate process."""
    port, worker_port = free_port(), free_port()
    ports = ("--port", str(port), "--worker-port", str(worker_port))
    # A start may take longer than the platform lets its callers wait.
    emulator = (*EMULATOR, *ports, "--gateway-timeout", str(conditions.start_s))
    async with run_process(emulator, PYTHONPATH, quiet=True) as platform:
        settings = await read_worker_environ(platform)
        settings |= worker_settings(model, conditions.engine)
        environ = {**PYTHONPATH, **conditions.environ, **settings}
        address = f"http://127.0.0.1:{port}"
        endpoint = f"{address}/v2/local"
        base = f"{endpoint}/openai/v1"
        async with start_side(command, environ, base, conditions.start_s) as side:
            control = f"{address}/control"
            yield WorkerSide(**vars(side), platform=platform, control=control, endpoint=endpoint)


@asynccontextmanager
async def server(
    model: Path, conditions: Conditions, program: Sequence[str] = SERVER
) -> AsyncIterator[HttpSide]:
    """Run vLLM's own server, or another program of Python with its options."""
    port = free_port()
    command = [sys.executable, *program, "--model", str(model), "--served-model-name", NAME]
    command += ["--host", "127.0.0.1", "--port", str(port), *conditions.server_flags]
    for name, value in conditions.engine.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, list):
            command += [flag, *(json.dumps(each) for each in value)]
        elif value is not False:
            command += [flag] if value is True else [flag, str(value)]
    base = f"http://127.0.0.1:{port}/v1"
    async with start_side(command, conditions.environ, base, conditions.start_s) as side:
        yield side


def rust_server(model: Path, conditions: Conditions) -> AbstractAsyncContextManager[HttpSide]:
    environ = {**conditions.environ, "VLLM_USE_RUST_FRONTEND": "1"}
    return server(model, replace(conditions, environ=environ), SERVE)
