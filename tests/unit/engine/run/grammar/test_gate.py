"""The gate in front of vLLM's client: which grammars are tried, refused, or made to wait."""

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from support.engine.cores import settle
from support.engine.scripted import settings
from support.processes.background import HUNG_S
from vllm.exceptions import GracefulHTTPError, VLLMValidationError
from vllm.sampling_params import SamplingParams, StructuredOutputsParams

from worker.engine.run.grammar.gate import MOST_COMPILED, ONE_THREAD_S, Gate, trial_for
from worker.engine.run.grammar.trial import Grammar, Result
from worker.errors import EngineBusy

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
PATTERN = {"type": "string", "pattern": "a+"}
# Seconds; longer than the test takes.
COMPILED_S = 10 * HUNG_S
TAG = json.dumps({"structures": [], "triggers": []})


class Compiler:
    """A trial that knows the result of every grammar, and remembers which it was asked for."""

    limit_s = 2.5

    def __init__(self, outcome: str = "fine", seconds: float = 0) -> None:
        self.result = Result(outcome, seconds)
        self.asked: list[Grammar] = []

    async def of(self, grammar: Grammar) -> Result:
        self.asked.append(grammar)
        return self.result


class Client:
    """vLLM's, as far as a gate asks it; answers with two outputs."""

    def __init__(self, trial: Any = None, reason: str = "stop", *, compact: bool = False) -> None:
        self.reason = reason
        self.generating: list[Any] = []
        self.ended: list[Any] = []
        config = SimpleNamespace(disable_any_whitespace=compact, backend="xgrammar")
        self.vllm_config = SimpleNamespace(structured_outputs_config=config)
        self.model_config = SimpleNamespace(get_vocab_size=lambda: 10)
        self.renderer: Any = SimpleNamespace(tokenizer=object())
        this: Any = self
        self.gate = Gate(this, trial)

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, **_: Any
    ) -> AsyncGenerator[Any, None]:
        self.generating.append(request_id)
        try:
            for _index in range(2):
                yield SimpleNamespace(outputs=[SimpleNamespace(finish_reason=self.reason)])
        finally:
            self.ended.append(request_id)


def outputs(client: Any, name: str = "a", **structured: Any) -> AsyncGenerator[Any, None]:
    structure = StructuredOutputsParams(**structured) if structured else None
    params = SamplingParams(structured_outputs=structure)
    generated: AsyncGenerator[Any, None] = client.generate("Hi", params, name, lora_request=None)
    return generated


async def ask(client: Client, name: str = "a", **structured: Any) -> int:
    return len([output async for output in outputs(client, name, **structured)])


@pytest.mark.parametrize(
    ("structured", "tried"),
    [
        ({}, []),
        ({"json_object": True}, []),
        ({"choice": ["a", "b"]}, []),
        ({"json": SCHEMA}, []),
        ({"json": json.dumps(SCHEMA)}, []),
        ({"json": PATTERN}, [Grammar("json", json.dumps(PATTERN))]),
        ({"json": {"enum": ["a" * 1_000]}}, [Grammar("json", f'{{"enum": ["{"a" * 1_000}"]}}')]),
        ({"regex": "a+"}, [Grammar("regex", "a+")]),
        ({"grammar": 'root ::= "a"'}, [Grammar("ebnf", 'root ::= "a"')]),
        ({"grammar": 'start: "a"'}, [Grammar("lark", 'start: "a"')]),
        ({"structural_tag": TAG}, [Grammar("structural_tag", TAG)]),
    ],
    ids=repr,
)
async def test_what_may_be_slow_is_tried(structured: dict[str, Any], tried: list[Grammar]) -> None:
    trial = Compiler()
    assert await ask(Client(trial), **structured) == 2
    assert trial.asked == tried


@pytest.mark.parametrize("compact", [False, True])
async def test_a_schema_is_tried_with_the_whitespace_that_vllm_allows(compact: bool) -> None:
    trial = Compiler()
    await ask(Client(trial, compact=compact), json=PATTERN)
    assert [grammar.compact for grammar in trial.asked] == [compact]


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        ("slow", "takes too long to compile or to follow: at most 2.5 s"),
        ("large", "too much memory"),
        ("nothing", "nothing satisfies it"),
        ("failed", "can't be compiled"),
    ],
)
async def test_what_is_wrong_never_reaches_the_engine(outcome: str, message: str) -> None:
    client = Client(Compiler(outcome))
    with pytest.raises(VLLMValidationError, match=message) as caught:
        await ask(client, regex="a+")
    assert (caught.value.parameter, client.generating) == ("structured_outputs", [])


async def test_what_is_invalid_is_left_to_vllm_whose_message_says_why() -> None:
    assert await ask(Client(Compiler("invalid")), regex="a+") == 2


@pytest.mark.parametrize("trial", [None, Compiler()], ids=["untried", "tried"])
async def test_an_answer_that_nothing_could_satisfy_is_refused_and_ended(trial: Any) -> None:
    client = Client(trial, "error")
    with pytest.raises(VLLMValidationError, match="nothing satisfies it"):
        await ask(client, regex="a+")
    assert client.ended == ["a"]
    # Without a structure it has another cause.
    assert await ask(client, "b") == 2


async def test_a_caller_who_leaves_ends_the_request_at_once() -> None:
    client = Client(Compiler())
    left = outputs(client, regex="a+")
    await anext(left)
    await left.aclose()
    assert client.ended == ["a"]


async def test_slow_grammars_wait_for_each_other_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    passed, loop = 0.0, asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda: time.monotonic() + passed)
    trial = Compiler("fine", COMPILED_S)
    client = Client(trial)
    await ask(client, "first", regex="a")
    second, gone, third = (
        asyncio.create_task(ask(client, name, regex=regex))
        for name, regex in (("second", "b"), ("gone", "c"), ("third", "b"))
    )
    await settle()
    assert client.generating == ["first"]
    gone.cancel()
    # The engine has this one already.
    await ask(client, "again", regex="a")
    trial.result = Result("fine", 0.05)
    await ask(client, "quick", regex="d")
    assert client.generating == ["first", "again", "quick"]
    passed += COMPILED_S
    await second
    assert not third.done()
    passed += COMPILED_S
    await third
    assert client.generating == ["first", "again", "quick", "second", "third"]
    # The turn has been given back.
    trial.result = Result("fine", 0.11)
    await ask(client, "last", regex="e")


async def test_what_is_remembered_as_compiled_is_bounded() -> None:
    client = Client(Compiler("fine", 0.11))
    client.gate._compiled = {str(number).encode() for number in range(MOST_COMPILED)}
    await ask(client, regex="a")
    assert len(client.gate._compiled) == 1


@pytest.mark.parametrize(
    ("environ", "processors", "limit_s"),
    [
        ({}, 2, ONE_THREAD_S),
        ({}, 16, settings().structured_compile_s),
        ({"STRUCTURED_COMPILE_S": "7"}, 2, 7),
        ({"STRUCTURED_COMPILE_S": "7"}, 16, 7),
    ],
)
def test_the_limit_is_lower_where_the_engine_has_one_thread_unless_it_is_set(
    environ: dict[str, str], processors: int, limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    client: Any = Client()
    trial = trial_for(client, settings(**environ))
    assert trial is not None
    assert trial.limit_s == limit_s


def test_nothing_is_tried_without_a_limit_a_tokenizer_or_the_backend_that_is_known() -> None:
    client: Any = Client()
    assert trial_for(client, settings(STRUCTURED_COMPILE_S="0")) is None
    client.vllm_config.structured_outputs_config.backend = "guidance"
    assert trial_for(client, settings()) is None
    client = Client()
    client.renderer.tokenizer = None
    assert trial_for(client, settings()) is None


async def test_a_trial_that_is_not_answered_is_an_error_that_vllms_server_answers() -> None:
    async def unanswered(_: Grammar) -> Result:
        raise EngineBusy

    client = Client(SimpleNamespace(of=unanswered))
    with pytest.raises(GracefulHTTPError) as refused:
        await ask(client, json=PATTERN)
    assert (refused.value.http_status, client.generating) == (503, [])
