"""The entry point: its fitness check, signals, ports and imports."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support import ROOT
from support.engine.scripted import ScriptedEngine, tokens, worker
from support.processes.background import start_command, wait_until
from support.processes.commands import HANDLER, HOME, run_command
from support.processes.fleets import process_state

from emulator import Emulator, Status
from worker.local import fitness_job


async def test_the_fitness_check_generates_text_unless_the_model_can_not() -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        chunks = [chunk async for chunk in worker(engine).handle(fitness_job(engine.engines))]
        assert chunks[0]["choices"][0]["tokens"] == ["a"]
        engine.model = replace(engine.model, tasks=frozenset({"embed"}))
        chunks = [chunk async for chunk in worker(engine).handle(fitness_job(engine.engines))]
        assert chunks[0]["status"] == "ok"


# A startup that has just forked a core, in a way that multiprocessing doesn't know about.
FORKING_PROGRAM = """
import os, signal, time
import handler
signal.signal(signal.SIGTERM, lambda number, _: handler.exit_process(128 + number))
core = os.fork()
if not core:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
print(core, flush=True)
time.sleep(600)
"""


def test_sigterm_during_startup_ends_a_core_that_was_just_forked() -> None:
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(
        [sys.executable, "-c", FORKING_PROGRAM], env=environ, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        core = int(program.stdout.readline())
        program.send_signal(signal.SIGTERM)
        assert program.wait() == 128 + signal.SIGTERM

    wait_until(lambda: process_state(core) is None)


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_prefetching_opens_no_port(busy_port: int) -> None:
    result = run_command(HOME, *HANDLER, "--prefetch", "--serve", "--port", str(busy_port))
    assert "MODEL_NAME" in result.stdout + result.stderr
    assert "can't be opened" not in result.stdout + result.stderr
    assert result.returncode == 1


async def test_a_busy_port_fails_no_job_of_the_queue(busy_port: int, tmp_path: Path) -> None:
    command = [*HANDLER, "--serve", "--port", str(busy_port)]
    async with Emulator() as emulator:
        job = emulator.queue.submit({"input": {"prompt": "Hi"}})
        environ = {**HOME, **emulator.worker_environ()}
        with start_command(command, environ, tmp_path / "log") as process:
            assert await asyncio.to_thread(process.wait_for_exit) == 1
    assert "can't be opened" in process.output
    assert job.status is Status.IN_QUEUE


def test_importing_the_entry_point_imports_no_large_packages() -> None:
    large = {"torch", "vllm", "transformers", "huggingface_hub", "httpx2", "aiohttp", "runpod"}
    large.add("worker.app")
    script = f"import sys, handler; print(*sorted({large} & sys.modules.keys()))"
    result = run_command({**HOME, "PYTHONPATH": str(ROOT / "src")}, sys.executable, "-c", script)
    assert (result.returncode, result.stdout.strip()) == (0, ""), result
