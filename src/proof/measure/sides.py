"""The sides: the worker with a local platform, and vLLM's own server."""

import asyncio
import json
import shlex
import socket
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import psutil

from proof.measure import callers, http_load, usage
from proof.measure.figures import Load, Measurement, figures
from proof.measure.output import Output, read_output
from proof.measure.processes import ROOT, Lost, next_line, run_process

START_S = 180.0
NAME = "model"
HANDLER = (sys.executable, "-u", str(ROOT / "src" / "handler.py"))
EMULATOR = (sys.executable, "-m", "emulator")
SERVER = "vllm.entrypoints.openai.api_server"
PYTHONPATH = {"PYTHONPATH": str(ROOT / "src")}


@dataclass(frozen=True)
class Conditions:
    """Conditions that are the same on all sides.

    Args:
        engine: Options of the engine.
        environ: Variables of the side's process.
        title: Their description for the output.
        server_flags: Options that only vLLM's server has.
        start_s: Maximum seconds until the first token.
    """

    engine: Mapping[str, Any]
    environ: Mapping[str, str]
    title: str = ""
    server_flags: tuple[str, ...] = ()
    start_s: float = START_S


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
    output: Output = field(default_factory=Output, kw_only=True)

    async def run(self, load: Load, models: Sequence[str] = (NAME,)) -> Measurement:
        """Run a load whose requests name one of the models in turn."""
        before = self._cpu_s()
        answers = await callers.send(self.base, models, load)
        cpu = {
            name: 1000 * (after - before[name]) / load.requests
            for name, after in self._cpu_s().items()
        }
        return Measurement(figures(answers, **cpu), answers[0].since_sent())

    def memory_mib(self) -> float:
        return usage.memory_mib(self.process.pid)

    def _cpu_s(self) -> dict[str, float]:
        times = psutil.Process().cpu_times()
        # Those of the callers' processes are included when they have ended.
        ended = times.children_user + times.children_system
        return {
            "own_cpu": usage.cpu_s(self.process.pid),
            "client_cpu": times.user + times.system + ended,
        }


@dataclass
class WorkerSide(HttpSide):
    """The worker, with a local platform between it and the callers.

    Args:
        platform: The process of the platform.
        control: URL of the platform's control routes.
        endpoint: URL of the endpoint, for jobs.
    """

    platform: Process
    control: str
    endpoint: str

    async def run(self, load: Load, models: Sequence[str] = (NAME,)) -> Measurement:
        before = await self._posts()
        measured = await super().run(load, models)
        posts = (await self._posts() - before) / load.requests
        return replace(measured, figures=replace(measured.figures, posts=posts))

    def _cpu_s(self) -> dict[str, float]:
        return {**super()._cpu_s(), "platform_cpu": usage.cpu_s(self.platform.pid)}

    async def _posts(self) -> int:
        url = f"{self.control}/workers"
        async with aiohttp.ClientSession() as client, client.get(url) as response:
            (worker,) = (await response.json())["workers"]
        return int(worker["chunks"] + worker["results"])


def worker_settings(model: Path, engine: Mapping[str, Any]) -> dict[str, str]:
    """Return a worker's settings for a model and options of its engine."""
    return {
        "MODEL_NAME": str(model),
        "OPENAI_SERVED_MODEL_NAME_OVERRIDE": NAME,
        **{name.upper(): _setting(value) for name, value in engine.items()},
    }


def _setting(value: Any) -> str:
    if isinstance(value, list):
        return json.dumps(value)
    return str(int(value) if isinstance(value, bool) else value)


def server_command(
    model: Path, port: int, conditions: Conditions, module: str = SERVER
) -> list[str]:
    """Return the command of vLLM's server, or of another module with its options, for a model."""
    command = [sys.executable, "-m", module, "--model", str(model)]
    command += ["--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(port)]
    command += conditions.server_flags
    for name, value in conditions.engine.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, list):
            command += [flag, *(json.dumps(each) for each in value)]
        elif value is not False:
            command += [flag] if value is True else [flag, str(value)]
    return command


async def _read_worker_environ(platform: Process) -> dict[str, str]:
    """Return the worker's environment, which the local platform prints as lines for a shell."""
    environ: dict[str, str] = {}
    while "RUNPOD_ENDPOINT_BASE_URL" not in environ:
        _, assignment = await next_line(platform, "export ")
        name, value = assignment.split("=", 1)
        (environ[name],) = shlex.split(value)
    return environ


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


async def first_token(base: str, process: Process, limit_s: float = START_S) -> float:
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
    body = http_load.body(NAME, "Hi", Load(1, 1, 2))
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout) as client:
        while True:
            try:
                async with client.post(f"{base}/chat/completions", json=body) as response:
                    if response.status != 200:
                        raise Lost(f"{response.status}: {await response.text()}")
                    async for part in response.content.iter_any():
                        if http_load.IDS.search(part):
                            return time.monotonic()
                    raise Lost("the first stream has no token")
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.02)


async def _time_start(
    base: str, process: Process, limit_s: float, began: float, output: Output
) -> float:
    """Return the seconds from ``began`` to the first token; add the output to an error."""
    try:
        return await first_token(base, process, limit_s) - began
    except (Lost, TimeoutError) as error:
        # A child that is still running may prevent the end.
        with suppress(TimeoutError):
            await asyncio.wait_for(output.ended.wait(), 1)
        reason = str(error) or f"no token within {limit_s:.0f} s"
        raise Lost(reason, output.last_lines) from None


@asynccontextmanager
async def worker(
    model: Path, conditions: Conditions, command: Sequence[str] = HANDLER
) -> AsyncIterator[Side]:
    """Run the worker as in production, with a local platform in a separate process."""
    port, worker_port = free_port(), free_port()
    ports = ("--port", str(port), "--worker-port", str(worker_port))
    # A start may take longer than the platform lets its callers wait.
    emulator = (*EMULATOR, *ports, "--gateway-timeout", str(conditions.start_s))
    async with run_process(emulator, PYTHONPATH, quiet=True) as platform:
        settings = await _read_worker_environ(platform)
        settings |= worker_settings(model, conditions.engine)
        began = time.monotonic()
        environ = {**PYTHONPATH, **conditions.environ, **settings}
        running = run_process(command, environ, merged=True)
        async with running as process, read_output(process, began) as output:
            address = f"http://127.0.0.1:{port}"
            endpoint = f"{address}/v2/local"
            base = f"{endpoint}/openai/v1"
            first_s = await _time_start(base, process, conditions.start_s, began, output)
            control = f"{address}/control"
            yield WorkerSide(base, process, first_s, platform, control, endpoint, output=output)


@asynccontextmanager
async def server(model: Path, conditions: Conditions, module: str = SERVER) -> AsyncIterator[Side]:
    """Run vLLM's own server, or another module with its options."""
    port = free_port()
    command = server_command(model, port, conditions, module)
    began = time.monotonic()
    running = run_process(command, conditions.environ, merged=True)
    async with running as process, read_output(process, began) as output:
        base = f"http://127.0.0.1:{port}/v1"
        first_s = await _time_start(base, process, conditions.start_s, began, output)
        yield HttpSide(base, process, first_s, output=output)
