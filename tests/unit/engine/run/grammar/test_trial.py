"""Trials of grammars in the process that compiles them, and what happens when that fails."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from support import ROOT
from support.processes.background import wait_until

from worker.engine.run.grammar import trial as module
from worker.engine.run.grammar.trial import Grammar, Trial
from worker.errors import EngineBusy

# Ten characters, the end of a text, the brackets and quotes of JSON, and words of one letter.
VOCABULARY = [*"abcde01234", "<end>", *'{}[]":, ', *("a" * length for length in range(2, 200))]
FINE, OTHER = Grammar("regex", "[a-e]{4}"), Grammar("regex", "[a-e]{5}")
# A structural tag in its former form.
FORMER_TAG = Grammar(
    "structural_tag",
    json.dumps(
        {
            "structures": [{"begin": "{a}", "schema": {"type": "object"}, "end": "{b}"}],
            "triggers": ["{a"],
        }
    ),
)
# Answers that everything is fine.
ANSWERING = """
import json, sys
for line in sys.stdin:
    if "number" in (request := json.loads(line)):
        print(json.dumps([request["number"], "fine", 0.0]), flush=True)
"""


def description() -> str:
    # Imported here: it takes seconds, and other tests do without it.
    import xgrammar  # noqa: PLC0415 - see above

    text: str = xgrammar.TokenizerInfo(VOCABULARY, stop_token_ids=[10]).serialize_json()
    return text


def schema(count: int) -> Grammar:
    """Return a schema with as many properties, of which none is required."""
    properties = {f"field_{number}": {"type": ["string", "null"]} for number in range(count)}
    return Grammar("json", json.dumps({"type": "object", "properties": properties}))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def xgrammars_trial() -> AsyncGenerator[Trial, None]:
    trial = Trial(description, 20)
    yield trial
    await trial.close()


@pytest.fixture
async def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Trial, None]:
    (tmp_path / "answering.py").write_text(ANSWERING)
    monkeypatch.setattr(module, "PROCESS", "answering")
    monkeypatch.setattr("worker.children._SOURCES", tmp_path)
    trial = Trial(str, 20)
    yield trial
    await trial.close()


def pid_of(trial: Trial) -> int:
    assert trial._process
    return trial._process.pid


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("grammar", "outcome"),
    [
        (FINE, "fine"),
        (schema(1_000), "fine"),
        (Grammar("ebnf", "root ::= a\na ::= b\nb ::= a"), "nothing"),
        (Grammar("ebnf", "root ::= root"), "nothing"),
        (Grammar("ebnf", "root ::= nowhere"), "invalid"),
        (Grammar("structural_tag", "{"), "invalid"),
        (FORMER_TAG, "fine"),
        # Compiles at once; each further "a" has more readings than the one before.
        (Grammar("ebnf", 'root ::= root root root | "a"'), "slow"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.spec[:40],
)
async def test_a_trial_finds_what_compiling_and_following_a_grammar_comes_to(
    grammar: Grammar, outcome: str, xgrammars_trial: Trial
) -> None:
    assert (await xgrammars_trial.of(grammar)).outcome == outcome


@pytest.mark.asyncio(loop_scope="module")
async def test_what_takes_longer_than_the_limit_is_slow_and_others_do_not_wait_for_it(
    xgrammars_trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xgrammars_trial, "limit_s", 0.5)
    slow = asyncio.create_task(xgrammars_trial.of(schema(20_000)))
    assert (await xgrammars_trial.of(OTHER)).outcome == "fine"
    assert not slow.done()
    assert (await slow).outcome == "slow"


async def test_an_ended_process_fails_its_trials_and_is_started_again(trial: Trial) -> None:
    await trial.start()
    pid = pid_of(trial)
    os.kill(pid, signal.SIGSTOP)
    waiting = asyncio.create_task(trial.of(FINE))
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EngineBusy):
        await waiting
    assert (await trial.of(FINE)).outcome == "fine"
    assert pid_of(trial) != pid


async def test_junk_of_a_process_fails_what_it_had(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(module, "PROCESS", "this")  # a module that prints a text
        with pytest.raises(EngineBusy):
            await trial.of(FINE)
    assert "has printed something else" in caplog.text
    assert (await trial.of(FINE)).outcome == "fine"


async def test_a_process_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, trial: Trial) -> None:
    await trial.of(FINE)
    pid = pid_of(trial)
    os.kill(pid, signal.SIGSTOP)
    with monkeypatch.context() as patched:
        patched.setattr(module, "PATIENCE_S", 0.1 - 10 * trial.limit_s)
        with pytest.raises(EngineBusy):
            await trial.of(OTHER)
    assert (await trial.of(OTHER)).outcome == "fine"
    assert pid_of(trial) != pid


async def test_callers_who_leave_block_nobody(trial: Trial) -> None:
    await trial.start()
    os.kill(pid_of(trial), signal.SIGSTOP)
    left = [asyncio.create_task(trial.of(Grammar("regex", f"a{{{n}}}"))) for n in range(30)]
    await asyncio.sleep(0.01)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    os.kill(pid_of(trial), signal.SIGCONT)
    assert (await trial.of(FINE)).outcome == "fine"


async def test_a_process_has_no_environment(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_A_TEST", "hidden")
    await trial.of(FINE)
    names = psutil.Process(pid_of(trial)).environ().keys()
    # Python sets it where there is none.
    assert names - {"LC_CTYPE"} == {"PYTHONPATH", *module._ALONE}


@pytest.mark.asyncio(loop_scope="module")
async def test_the_process_that_forks_has_one_thread(xgrammars_trial: Trial) -> None:
    assert (await xgrammars_trial.of(FINE)).outcome == "fine"
    assert psutil.Process(pid_of(xgrammars_trial)).num_threads() == 1


def test_the_process_ends_with_the_worker_however_that_ends() -> None:
    script = """
import asyncio
from worker.engine.run.grammar.trial import Trial

async def run():
    trial = Trial(lambda: "", 1)
    await trial.start()
    print(trial._process.pid, flush=True)
    await asyncio.sleep(300)

asyncio.run(run())
"""
    command, env = [sys.executable, "-c", script], {"PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as worker:
        assert worker.stdout
        process = Path(f"/proc/{int(worker.stdout.readline())}/cmdline")
        assert process.exists()
        worker.kill()
    wait_until(lambda: not process.exists() or not process.read_bytes())
