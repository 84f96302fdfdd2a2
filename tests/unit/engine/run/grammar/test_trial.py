"""Trials of grammars in a process that compiles them, and failures of that process."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from worker.engine.run.grammar import trial as module
from worker.engine.run.grammar.schemas import find_places
from worker.engine.run.grammar.trial import Grammar, GrammarTester
from worker.errors import EngineBusy

# Ten characters, the end of a text, the brackets and quotes of JSON, and words of one letter.
VOCABULARY = [*"abcde01234", "<end>", *'{}[]":, ', *("a" * length for length in range(2, 200))]
FINE, OTHER = Grammar("regex", "[a-e]{4}"), Grammar("regex", "[a-e]{5}")
# A structural tag in the old format.
OLD_TAG = Grammar(
    "structural_tag",
    json.dumps(
        {
            "structures": [{"begin": "{a}", "schema": {"type": "object"}, "end": "{b}"}],
            "triggers": ["{a"],
        }
    ),
)
# A program that accepts every grammar.
ACCEPTING_PROGRAM = """
import json, sys
for line in sys.stdin:
    if "number" in (request := json.loads(line)):
        print(json.dumps([request["number"], "fine", 0.0]), flush=True)
"""


def description() -> str:
    # Imported here because it takes seconds, and other tests don't need it.
    import xgrammar  # noqa: PLC0415 - see above

    text: str = xgrammar.TokenizerInfo(VOCABULARY, stop_token_ids=[10]).serialize_json()
    return text


def schema(count: int) -> Grammar:
    """Return a schema with ``count`` optional properties."""
    properties = {f"field_{number}": {"type": ["string", "null"]} for number in range(count)}
    return Grammar("json", json.dumps({"type": "object", "properties": properties}))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def xgrammar_trial() -> AsyncGenerator[GrammarTester, None]:
    trial = GrammarTester(description, 20)
    yield trial
    await trial.stop_process()


@pytest.fixture
async def trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[GrammarTester, None]:
    (tmp_path / "answering.py").write_text(ACCEPTING_PROGRAM)
    monkeypatch.setattr(module, "PROCESS_MODULE", "answering")
    monkeypatch.setattr("worker.children._SOURCES", tmp_path)
    trial = GrammarTester(str, 20)
    yield trial
    await trial.stop_process()


def pid_of(trial: GrammarTester) -> int:
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
        (OLD_TAG, "fine"),
        # Compiles immediately, but each further "a" has more readings than the previous one.
        (Grammar("ebnf", 'root ::= root root root | "a"'), "slow"),
        # The same in expressions that may also end after the first token.
        (Grammar("regex", "(b{0,30}){0,30}e"), "slow"),
        (Grammar("regex", "(b+){0,900}e"), "slow"),
        # Each further token takes longer, although the first hundred take little.
        (Grammar("regex", "(b*)*e"), "slow"),
        (Grammar("regex", "(b{1,30}){1,30}c"), "fine"),
        (Grammar("regex", "([b-e]+, ){1,20}"), "fine"),
        (Grammar("regex", "b?"), "fine"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.spec[:40],
)
async def test_a_trial_returns_the_outcome_of_compiling_and_following_a_grammar(
    grammar: Grammar, outcome: str, xgrammar_trial: GrammarTester
) -> None:
    assert (await xgrammar_trial.try_grammar(grammar)).outcome == outcome


BOMB = {"type": "string", "pattern": "((a{0,100}){0,100}){0,100}"}
TEXT = {"type": "string"}


def properties(*schemas: Any) -> dict[str, Any]:
    named = {f"p{number}": schema for number, schema in enumerate(schemas)}
    return {"type": "object", "properties": named, "required": [*named]}


def tool_calls(**parameters: Any) -> dict[str, Any]:
    """Return the schema of calls of some tools, by their names, as vLLM makes it."""
    calls = [
        {"properties": {"name": {"type": "string", "enum": [name]}, "parameters": schema}}
        for name, schema in parameters.items()
    ]
    return {"type": "array", "minItems": 1, "items": {"type": "object", "anyOf": calls}}


def structural_tag(begin: str) -> dict[str, Any]:
    tag = {"begin": begin, "content": {"type": "json_schema", "json_schema": properties(BOMB)}}
    tags = {"type": "triggered_tags", "triggers": ["<"], "tags": [{**tag, "end": "</f>"}]}
    return {"type": "structural_tag", "format": tags}


@pytest.mark.parametrize(
    ("schema", "places"),
    [
        (BOMB, [""]),
        ({"patternProperties": {BOMB["pattern"]: TEXT}}, [""]),
        (properties(*[TEXT] * 15, BOMB), ["property 'p15'"]),
        (properties(properties(TEXT, {"items": BOMB})), ["property 'p0.p1'"]),
        ({"$defs": {"a": properties(BOMB)}, "$ref": "#/$defs/a"}, ["property 'p0'"]),
        (tool_calls(f=properties(TEXT), g=properties(TEXT, BOMB)), ["tool 'g', property 'p1'"]),
        (structural_tag("<f>"), ["tool '<f>', property 'p0'"]),
        (structural_tag('<call>{"name": "f", "arguments": '), ["tool 'f', property 'p0'"]),
        # Texts that look like expressions, and expressions that are quick.
        ({"default": BOMB, "enum": [BOMB], "examples": [BOMB]}, []),
        (properties({"type": "string", "pattern": r"^[a-z]+$"}), []),
    ],
    ids=str,
)
def test_an_expression_is_found_anywhere_in_a_schema(
    schema: dict[str, Any], places: list[str]
) -> None:
    found = [place for place in find_places(json.dumps(schema)) if place.regexes]
    assert [place.description for place in found] == places


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("kind", "schema", "place"),
    [
        ("json", BOMB, "a pattern"),
        ("json", properties(TEXT, BOMB), "property 'p1'"),
        ("structural_tag", structural_tag("<f>"), "tool '<f>', property 'p0'"),
        ("json", properties({"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}$"}), ""),
    ],
    ids=str,
)
async def test_a_slow_expression_is_reported_with_its_place(
    kind: str, schema: dict[str, Any], place: str, xgrammar_trial: GrammarTester
) -> None:
    result = await xgrammar_trial.try_grammar(Grammar(kind, json.dumps(schema)))
    assert (result.outcome, result.place) == ("slow" if place else "fine", place)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_trial_measures_the_time_for_a_token(xgrammar_trial: GrammarTester) -> None:
    times_s = [
        (await xgrammar_trial.try_grammar(Grammar("regex", expression))).step_s
        for expression in ("b?", "[b-e]+", "((b|c|bc|cb){1,30}){1,30}")
    ]
    assert times_s[0] == 0
    assert 0 < 3 * times_s[1] < times_s[2]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_trial_beyond_the_limit_is_slow_and_does_not_delay_others(
    xgrammar_trial: GrammarTester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xgrammar_trial, "limit_s", 0.5)
    slow = asyncio.create_task(xgrammar_trial.try_grammar(schema(20_000)))
    assert (await xgrammar_trial.try_grammar(OTHER)).outcome == "fine"
    assert not slow.done()
    assert (await slow).outcome == "slow"


async def test_a_killed_process_fails_its_trials_and_is_restarted(trial: GrammarTester) -> None:
    await trial.start_process()
    pid = pid_of(trial)
    os.kill(pid, signal.SIGSTOP)
    waiting = asyncio.create_task(trial.try_grammar(FINE))
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EngineBusy):
        await waiting
    assert (await trial.try_grammar(FINE)).outcome == "fine"
    assert pid_of(trial) != pid


async def test_unexpected_output_of_the_process_fails_its_trials(
    trial: GrammarTester, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(module, "PROCESS_MODULE", "this")  # a module that prints text
        with pytest.raises(EngineBusy):
            await trial.try_grammar(FINE)
    assert "has printed something unexpected" in caplog.text
    assert (await trial.try_grammar(FINE)).outcome == "fine"


async def test_a_process_that_hangs_is_restarted(
    monkeypatch: pytest.MonkeyPatch, trial: GrammarTester
) -> None:
    await trial.try_grammar(FINE)
    pid = pid_of(trial)
    os.kill(pid, signal.SIGSTOP)
    with monkeypatch.context() as patched:
        patched.setattr(module, "BASE_TIMEOUT_S", 0.1 - 10 * trial.limit_s)
        with pytest.raises(EngineBusy):
            await trial.try_grammar(OTHER)
    assert (await trial.try_grammar(OTHER)).outcome == "fine"
    assert pid_of(trial) != pid


async def test_cancelled_trials_do_not_block_others(trial: GrammarTester) -> None:
    await trial.start_process()
    os.kill(pid_of(trial), signal.SIGSTOP)
    cancelled = [
        asyncio.create_task(trial.try_grammar(Grammar("regex", f"a{{{n}}}"))) for n in range(30)
    ]
    await asyncio.sleep(0.01)
    for task in cancelled:
        task.cancel()
    await asyncio.gather(*cancelled, return_exceptions=True)
    os.kill(pid_of(trial), signal.SIGCONT)
    assert (await trial.try_grammar(FINE)).outcome == "fine"


async def test_a_cancelled_caller_does_not_end_the_start_that_others_wait_for(
    trial: GrammarTester,
) -> None:
    described, starts = threading.Event(), []

    def describe() -> str:
        starts.append(described.wait())
        return ""

    trial._describe_tokenizer = describe
    first, second = (asyncio.create_task(trial.try_grammar(grammar)) for grammar in (FINE, OTHER))
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    described.set()
    assert (await second).outcome == "fine"
    assert starts == [True]


async def test_a_start_that_fails_leaves_no_process_and_is_repeated(trial: GrammarTester) -> None:
    def fail() -> str:
        raise RuntimeError("no tokenizer")

    trial._describe_tokenizer = fail
    with pytest.raises(RuntimeError, match="no tokenizer"):
        await trial.try_grammar(FINE)
    assert trial._process
    assert trial._process.returncode == -signal.SIGKILL
    trial._describe_tokenizer = str
    assert (await trial.try_grammar(FINE)).outcome == "fine"


async def test_the_process_inherits_no_environment(
    trial: GrammarTester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_A_TEST", "hidden")
    await trial.try_grammar(FINE)
    names = psutil.Process(pid_of(trial)).environ().keys()
    # Python sets LC_CTYPE if the environment is empty.
    assert names - {"LC_CTYPE"} == {"PYTHONPATH", *module._ENVIRONMENT}


@pytest.mark.asyncio(loop_scope="module")
async def test_the_process_that_forks_has_one_thread(xgrammar_trial: GrammarTester) -> None:
    assert (await xgrammar_trial.try_grammar(FINE)).outcome == "fine"
    assert psutil.Process(pid_of(xgrammar_trial)).num_threads() == 1
