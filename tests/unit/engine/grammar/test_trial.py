"""Trials of grammars in the process that compiles them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from support.processes.background import HUNG_S

from worker.engine.grammar import trial as module
from worker.engine.grammar.trial import PROCESS, Grammar, Trial
from worker.errors import EngineBusy

# Ten characters, the end of a text, the brackets and quotes of JSON, and words of one letter.
VOCABULARY = [*"abcde01234", "<end>", *'{}[]":, ', *("a" * length for length in range(2, 200))]
FINE = Grammar("regex", "[a-e]{4}")
# Compiles at once; each further "a" has more readings than the one before.
AMBIGUOUS = Grammar("ebnf", 'root ::= root root root | "a"')
ENDLESS = Grammar("ebnf", "root ::= a\na ::= b\nb ::= a")


def description() -> str:
    # Imported here: it takes seconds, and other tests of this folder do without it.
    import xgrammar  # noqa: PLC0415 - see above

    text: str = xgrammar.TokenizerInfo(VOCABULARY, stop_token_ids=[10]).serialize_json()
    return text


def many(count: int) -> Grammar:
    """Return a schema with as many properties, of which none is required."""
    properties = {f"field_{number}": {"type": ["string", "null"]} for number in range(count)}
    return Grammar("json", json.dumps({"type": "object", "properties": properties}))


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer for the process, which gives way to all others, on a busy machine."""
    monkeypatch.setattr(module, "PATIENCE_S", HUNG_S)


@pytest.fixture
async def trial() -> AsyncGenerator[Trial, None]:
    trial = Trial(description, 20)
    yield trial
    await trial.close()


def pids() -> set[int]:
    """Return the processes that try grammars out, of this process only."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue  # it has just ended
        if PROCESS.encode() in command and int(parent) == os.getpid():
            found.add(int(folder.name))
    return found


def environment(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/environ").read_text().split("\0")


async def test_what_compiles_is_told_from_what_nothing_satisfies_and_what_is_wrong(
    trial: Trial,
) -> None:
    wrong = Grammar("ebnf", "root ::= nowhere")
    broken = Grammar("structural_tag", "{")
    asked = (FINE, ENDLESS, Grammar("ebnf", "root ::= root"), wrong, broken, AMBIGUOUS, many(1_000))
    outcomes = [(await trial.of(grammar)).outcome for grammar in asked]
    assert outcomes == ["fine", "nothing", "nothing", "invalid", "invalid", "slow", "fine"]


async def test_what_takes_longer_than_the_limit_is_slow_and_others_do_not_wait_for_it() -> None:
    trial = Trial(description, 0.5)
    try:
        slow = asyncio.create_task(trial.of(many(20_000)))
        assert (await trial.of(FINE)).outcome == "fine"
        assert (await slow).outcome == "slow"
    finally:
        await trial.close()


async def test_an_ended_process_fails_what_it_had_as_retryable_and_another_is_started(
    trial: Trial,
) -> None:
    await trial.start()
    (pid,) = pids()
    os.kill(pid, signal.SIGSTOP)
    waiting = asyncio.create_task(trial.of(FINE))
    await asyncio.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EngineBusy):
        await waiting
    assert (await trial.of(FINE)).outcome == "fine"
    assert pids().isdisjoint({pid})


async def test_a_process_that_prints_anything_else_fails_what_it_had_at_once(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A module that prints a text.
    monkeypatch.setattr(module, "PROCESS", "this")
    async with asyncio.timeout(60):
        with pytest.raises(EngineBusy):
            await trial.of(FINE)
    monkeypatch.undo()
    assert (await trial.of(FINE)).outcome == "fine"


async def test_a_process_that_hangs_is_ended_when_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch, trial: Trial
) -> None:
    other = Grammar("regex", "[a-e]{5}")
    await trial.of(FINE)
    [pid] = pids()
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(module, "PATIENCE_S", -10 * trial.limit_s + 1)
    with pytest.raises(EngineBusy):
        await trial.of(other)
    monkeypatch.undo()
    assert (await trial.of(other)).outcome == "fine"
    assert pids().isdisjoint({pid})


async def test_callers_who_leave_block_nobody(trial: Trial) -> None:
    left = [asyncio.create_task(trial.of(Grammar("regex", f"a{{{n}}}"))) for n in range(1, 30)]
    await asyncio.sleep(0.1)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    assert (await trial.of(FINE)).outcome == "fine"


async def test_the_process_has_nothing_of_the_environment(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_A_TEST", "hidden")
    await trial.start()
    (pid,) = pids()
    names = {name.partition("=")[0] for name in environment(pid) if name}
    # Python sets it where there is none.
    assert names - {"LC_CTYPE"} == {"PYTHONPATH", "OMP_NUM_THREADS"}


def test_the_process_ends_with_the_worker_however_that_ends() -> None:
    script = (
        f"DESCRIPTION = {description()!r}"
        + """
import asyncio, sys
from worker.engine.grammar.trial import Trial

async def run():
    trial = Trial(lambda: DESCRIPTION, 1)
    await trial.start()
    print(trial._process.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(run())
"""
    )
    command, env = [sys.executable, "-c", script], {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as worker:
        assert worker.stdout
        pid = int(worker.stdout.readline())
        worker.kill()
    deadline = time.monotonic() + HUNG_S
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < deadline, "the process outlives the worker"
        time.sleep(0.1)
