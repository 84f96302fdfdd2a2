"""The parts of the entry point between the SDK and an engine that dies."""

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
from support.processes.background import background, wait_until
from support.processes.commands import HANDLER, HOME, run
from support.processes.fleets import process_state

from emulator import Emulator, Status
from worker.local import job_for


async def test_the_fitness_check_asks_for_what_the_model_can_do() -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        answered = [chunk async for chunk in worker(engine).handle(job_for(engine.engines))]
        assert answered[0]["choices"][0]["tokens"] == ["a"]
        engine.model = replace(engine.model, tasks=frozenset({"embed"}))
        chunks = [chunk async for chunk in worker(engine).handle(job_for(engine.engines))]
        assert chunks[0]["status"] == "ok"


# A start that has just forked its core, in a way that multiprocessing does not know of.
FORKING = """
import os, signal, time
import handler
signal.signal(signal.SIGTERM, lambda number, _: handler.leave(128 + number))
core = os.fork()
if not core:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
print(core, flush=True)
time.sleep(600)
"""


def test_sigterm_during_a_start_ends_a_core_that_was_forked_a_moment_ago() -> None:
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(
        [sys.executable, "-c", FORKING], env=environ, stdout=subprocess.PIPE, text=True
    ) as start:
        assert start.stdout is not None
        core = int(start.stdout.readline())
        start.send_signal(signal.SIGTERM)
        assert start.wait() == 128 + signal.SIGTERM

    wait_until(lambda: process_state(core) is None)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


def test_who_only_prefetches_opens_no_port(taken_port: int) -> None:
    ended = run(HOME, *HANDLER, "--prefetch", "--serve", "--port", str(taken_port))
    assert "MODEL_NAME" in ended.stdout + ended.stderr
    assert "can't be opened" not in ended.stdout + ended.stderr
    assert ended.returncode == 1


async def test_a_taken_port_fails_no_job_of_the_queue(taken_port: int, tmp_path: Path) -> None:
    command = [*HANDLER, "--serve", "--port", str(taken_port)]
    async with Emulator() as emulator:
        job = emulator.queue.submit({"input": {"prompt": "Hi"}})
        environ = {**HOME, **emulator.worker_environ()}
        with background(command, environ, tmp_path / "log") as started:
            assert await asyncio.to_thread(started.ended) == 1
    assert "can't be opened" in started.output
    assert job.status is Status.IN_QUEUE


def test_the_ports_are_open_before_anything_large_is_imported() -> None:
    large = {"torch", "vllm", "transformers", "aiohttp", "runpod", "worker.app"}
    script = f"import sys, handler; print(*sorted({large} & sys.modules.keys()))"
    ran = run({**HOME, "PYTHONPATH": str(ROOT / "src")}, sys.executable, "-c", script)
    assert (ran.returncode, ran.stdout.strip()) == (0, ""), ran
