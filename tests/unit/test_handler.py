"""The parts of the entry point between the SDK and an engine that dies."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import psutil
import pytest
from support import ROOT
from support.engine.scripted import ScriptedEngine, tokens, worker

from handler import fitness_job, take_until_death


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    with ScriptedEngine() as running:
        yield running


async def test_jobs_are_taken_while_the_engine_lives(engine: ScriptedEngine) -> None:
    async def take(*args: Any) -> list[Any]:
        return [*args, "job"]

    assert await take_until_death(take, engine.died)("session", 2) == ["session", 2, "job"]


async def test_a_failing_take_fails_as_the_sdk_expects(engine: ScriptedEngine) -> None:
    async def take() -> None:
        raise ConnectionError("refused")

    with pytest.raises(ConnectionError, match="refused"):
        await take_until_death(take, engine.died)()


async def test_the_death_of_the_engine_hangs_up_a_waiting_take(engine: ScriptedEngine) -> None:
    hung_up = asyncio.Event()

    async def take() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            hung_up.set()

    taking = asyncio.create_task(take_until_death(take, engine.died)())
    await asyncio.sleep(0.01)
    assert not hung_up.is_set()
    engine.died.set_result(None)
    async with asyncio.timeout(60):
        await hung_up.wait()
    # And no job is taken from then on: the process is about to end.
    assert not taking.done()
    taking.cancel()


async def test_a_take_that_the_sdk_cancels_is_cancelled(engine: ScriptedEngine) -> None:
    given_up = asyncio.Event()

    async def take() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(take_until_death(take, engine.died)(), 0.01)
    async with asyncio.timeout(60):
        await given_up.wait()


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
