"""The sides, the worker and vLLM's own server, on a core without a GPU."""

import asyncio
import json
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from compare_parts.conditions import CONDITIONS as COMPARISON_CONDITIONS
from compare_parts.sides import PYTHONPATH, RUST, RUST_SERVER

from emulator import Emulator, Options
from gpu_load.loads import Load, make_order
from gpu_load.pacing import RECORDS_VARIABLE, core_figures, read_records
from proof.measure import processes, usage
from proof.measure.sides import (
    HANDLER,
    NAME,
    SERVER,
    START_S,
    first_token,
    free_port,
    server_command,
    worker_settings,
)

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
CONDITIONS = replace(
    COMPARISON_CONDITIONS["one-thread"],
    engine=ENGINE,
    environ={
        **COMPARISON_CONDITIONS["one-thread"].environ,
        **PYTHONPATH,
        # The core computes nothing, so the model's own context does not matter.
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
    },
)
# Settings of the worker that vLLM's server does not have.
WORKER_SETTINGS = {"ALLOWED_XARGS": "pace,tool", "MAX_CONCURRENCY": "auto"}
# Maximum CPU seconds per second of a side without a request.
IDLE_CPU_S = 0.1


@dataclass(frozen=True)
class Side:
    """A running side.

    Args:
        model: Directory of its model.
        front: The process with the API, whose child is the core.
        callers: The process of the callers.
        records: File of the core's records.
    """

    model: Path
    front: Process
    callers: Process
    records: Path

    async def run(self, load: Load) -> dict[str, float]:
        """Return the figures of a load.

        Raises:
            processes.Lost: If an answer is an error, lacks tokens or does not end.
        """
        assert self.callers.stdin is not None  # for the type checker
        self.callers.stdin.write(make_order(load, NAME, self.model).to_json().encode() + b"\n")
        await processes.next_line(self.callers, "begin")
        before = self._cpu_s()
        await processes.next_line(self.callers, "end")
        after = self._cpu_s()
        _, output = await processes.next_line(self.callers, "measured")
        figures: dict[str, float] = json.loads(output)
        began, ended = figures.pop("began"), figures.pop("ended")
        cores = {name: (after[name] - before[name]) / (ended - began) for name in before}
        await self._wait_until_idle()
        core = core_figures(read_records(self.records), began, ended)
        core["core_pace"] = core.pop("steps_per_s") / load.pace
        return {**figures, **cores, **core}

    async def _wait_until_idle(self) -> None:
        """Wait until the side has cancelled all requests, and sends nothing any more."""
        before = 0.0
        while (cpu_s := usage.cpu_s(self.front.pid)) - before > IDLE_CPU_S:
            before = cpu_s
            await asyncio.sleep(1)

    def _cpu_s(self) -> dict[str, float]:
        core = usage.cpu_s(read_records(self.records)[-1].pid)
        return {
            "front_cores": usage.cpu_s(self.front.pid) - core,
            "core_cores": core,
            "callers_cores": usage.cpu_s(self.callers.pid),
        }


StartSide = Callable[[Path], AbstractAsyncContextManager[Side]]


@contextmanager
def _records() -> Iterator[tuple[Path, dict[str, str]]]:
    """Return a file for the core's records, and the environment of a front with such a core."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "records.jsonl")
        yield file, {**CONDITIONS.environ, RECORDS_VARIABLE: str(file)}


def _run_callers(kind: str, port: int) -> AbstractAsyncContextManager[Process]:
    command = (sys.executable, "-m", "gpu_load.run_callers", kind, str(port))
    return processes.run_process(command, PYTHONPATH, stdin=PIPE)


@asynccontextmanager
async def worker(model: Path) -> AsyncIterator[Side]:
    """Run the worker as in production, with a minimal platform."""
    port = free_port()
    # The emulator only supplies the variables: it is not started.
    platform = Emulator(Options(worker_port=port)).worker_environ()
    settings = {**platform, **worker_settings(model, ENGINE), **WORKER_SETTINGS}
    with _records() as (records, environ):
        async with (
            _run_callers("platform", port) as callers,
            processes.run_process(
                HANDLER, {**environ, **settings}, quiet=True, stdout=DEVNULL
            ) as front,
        ):
            # The core works for the first time when the worker warms up.
            async with asyncio.timeout(START_S):
                while front.returncode is None and not records.exists():  # noqa: ASYNC110 - another process writes it
                    await asyncio.sleep(0.1)
            yield Side(model, front, callers, records)


@asynccontextmanager
async def server(model: Path, *, rust: bool = False) -> AsyncIterator[Side]:
    """Run vLLM's own server, with its front end in Python or in Rust."""
    port = free_port()
    command = server_command(model, port, CONDITIONS, RUST_SERVER if rust else SERVER)
    with _records() as (records, environ):
        variables = {**environ, **(RUST if rust else {})}
        async with processes.run_process(command, variables, quiet=True, stdout=DEVNULL) as front:
            await first_token(f"http://127.0.0.1:{port}/v1", front)
            async with _run_callers("clients", port) as callers:
                yield Side(model, front, callers, records)


SIDES: dict[str, StartSide] = {
    "worker": worker,
    "server": server,
    "rust": partial(server, rust=True),
}
