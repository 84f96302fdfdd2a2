"""The parts of the entry point between the SDK and an engine that dies."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace

import psutil
import pytest
from support import ROOT
from support.engine.scripted import ScriptedEngine, tokens, worker

from handler import fitness_job


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    with ScriptedEngine() as running:
        yield running


async def test_the_fitness_check_asks_for_what_the_model_can_do() -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        answered = [chunk async for chunk in worker(engine).handle(fitness_job(engine.model))]
        assert answered[0]["choices"][0]["tokens"] == ["a"]
        engine.model = replace(engine.model, tasks=frozenset({"embed"}))
        chunks = [chunk async for chunk in worker(engine).handle(fitness_job(engine.model))]
        assert chunks[0]["status"] == "ok"


# A start that has just forked its core, in a way that multiprocessing does not know of.
FORKING = """
import os, signal, time
import handler
signal.signal(signal.SIGTERM, handler.leave_on_signal)
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
        core = psutil.Process(int(start.stdout.readline()))
        start.send_signal(signal.SIGTERM)
        assert start.wait() == 128 + signal.SIGTERM
    psutil.wait_procs([core])
    assert not core.is_running() or core.status() == psutil.STATUS_ZOMBIE
