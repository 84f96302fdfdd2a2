"""The gate in front of vLLM's client, which tries, refuses and delays grammars."""

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from support.processes.background import HUNG_S, settle
from vllm.exceptions import GracefulHTTPError, VLLMValidationError
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.structured_output.backend_xgrammar import validate_xgrammar_grammar

from worker.engine.run.grammar.gate import (
    MAX_COMPILED,
    GrammarGate,
    create_grammar_tester,
)
from worker.engine.run.grammar.trial import Grammar, TrialResult
from worker.errors import EngineBusy
from worker.limits.work import MAX_COMPILE_S, MAX_GRAMMAR_CHARACTERS, SINGLE_THREAD_COMPILE_S

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
PATTERN = {"type": "string", "pattern": "a+"}
# Seconds to compile a grammar; longer than the test takes.
COMPILE_S = 10 * HUNG_S
TAG = json.dumps({"structures": [], "triggers": []})


class FakeTrial:
    """A trial with the same result for every grammar, which records the grammars."""

    limit_s = 2.5

    def __init__(
        self, outcome: str = "fine", seconds: float = 0, step_s: float = 0, place: str = ""
    ) -> None:
        self.result = TrialResult(outcome, seconds, step_s, place)
        self.grammars: list[Grammar] = []

    async def try_grammar(self, grammar: Grammar) -> TrialResult:
        self.grammars.append(grammar)
        return self.result


class FakeClient:
    """The part of vLLM's client that a gate uses; every request has two outputs."""

    def __init__(self, trial: Any = None, reason: str = "stop", *, compact: bool = False) -> None:
        self.reason = reason
        self.received_ids: list[Any] = []
        self.finished_ids: list[Any] = []
        config = SimpleNamespace(disable_any_whitespace=compact, backend="xgrammar")
        self.vllm_config = SimpleNamespace(structured_outputs_config=config)
        self.model_config = SimpleNamespace(get_vocab_size=lambda: 10)
        self.renderer: Any = SimpleNamespace(tokenizer=object())
        this: Any = self
        self.gate = GrammarGate(this, trial)

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, **_: Any
    ) -> AsyncGenerator[Any, None]:
        self.received_ids.append(request_id)
        try:
            for _index in range(2):
                yield SimpleNamespace(outputs=[SimpleNamespace(finish_reason=self.reason)])
        finally:
            self.finished_ids.append(request_id)


def outputs(
    client: Any, name: str = "a", choices: int = 1, **structured: Any
) -> AsyncGenerator[Any, None]:
    structure = StructuredOutputsParams(**structured) if structured else None
    params = SamplingParams(structured_outputs=structure, n=choices)
    generated: AsyncGenerator[Any, None] = client.generate("Hi", params, name, lora_request=None)
    return generated


async def count_outputs(
    client: FakeClient, name: str = "a", choices: int = 1, **structured: Any
) -> int:
    return len([output async for output in outputs(client, name, choices, **structured)])


@pytest.mark.parametrize(
    ("structured", "tried"),
    [
        ({}, []),
        ({"json_object": True}, []),
        ({"choice": ["a", "b"]}, []),
        ({"choice": ["a" * 990]}, [Grammar("ebnf", f'root ::= "{"a" * 990}"')]),
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
async def test_only_grammars_that_may_be_slow_are_tried(
    structured: dict[str, Any], tried: list[Grammar]
) -> None:
    trial = FakeTrial()
    assert await count_outputs(FakeClient(trial), **structured) == 2
    assert trial.grammars == tried


@pytest.mark.parametrize("compact", [False, True])
async def test_a_schema_is_tried_with_the_whitespace_that_vllm_allows(compact: bool) -> None:
    trial = FakeTrial()
    await count_outputs(FakeClient(trial, compact=compact), json=PATTERN)
    assert [grammar.compact for grammar in trial.grammars] == [compact]


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        ("slow", "takes more than 2.5 s to compile, or 0.1 s to follow for a token"),
        ("large", "too much memory"),
        ("nothing", "nothing satisfies it"),
        ("failed", "can't be compiled"),
    ],
)
async def test_a_grammar_that_fails_its_trial_never_reaches_the_engine(
    outcome: str, message: str
) -> None:
    client = FakeClient(FakeTrial(outcome))
    with pytest.raises(VLLMValidationError, match=message) as caught:
        await count_outputs(client, regex="a+")
    assert (caught.value.parameter, client.received_ids) == ("structured_outputs", [])


async def test_a_refusal_names_the_tool_and_the_property() -> None:
    client = FakeClient(FakeTrial("slow", place="tool 'f', property 'a.b'"))
    with pytest.raises(
        VLLMValidationError, match=r"^structured output: tool 'f', property 'a\.b': "
    ):
        await count_outputs(client, json=PATTERN)
    # The trial doesn't know the place of a compilation that was too long: the largest count is it.
    client = FakeClient(FakeTrial("slow"))
    schema = {"properties": {"a": {"maxItems": 1_001}, "b": {"items": {"maxLength": 9_999}}}}
    with pytest.raises(VLLMValidationError, match="structured output: property 'b': "):
        await count_outputs(client, json=schema)


class ValidatingClient(FakeClient):
    """A client that refuses a structured output as vLLM does."""

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, **options: Any
    ) -> AsyncGenerator[Any, None]:
        validate_xgrammar_grammar(sampling_params)
        async for output in super().generate(prompt, sampling_params, request_id, **options):
            yield output


def call_tag(name: str, schema: Any) -> dict[str, Any]:
    content = {"type": "json_schema", "json_schema": schema}
    return {"type": "tag", "begin": f'{{"name": "{name}"', "content": content, "end": "}"}


CODE = {"type": "string", "pattern": "^[A-Z]{3}$", "minLength": 3}
LINK = {"type": "string", "format": "uri", "maxLength": 2083}
TAGS = {
    "type": "sequence",
    "elements": [call_tag("f", SCHEMA), call_tag("g", {"$ref": "#/$defs/None"})],
}


@pytest.mark.parametrize(
    ("structured", "message"),
    [
        ({"json": {"type": "integer", "multipleOf": 5}}, "xgrammar can't enforce 'multipleOf'"),
        (
            {"json": {"type": "object", "properties": {"a": {"items": CODE}}}},
            "property 'a': xgrammar can't enforce 'pattern' and 'minLength' together",
        ),
        (
            {"json": {"$defs": {"b": LINK}, "properties": {"a": {"$ref": "#/$defs/b"}}}},
            "xgrammar can't enforce 'format' and 'maxLength' together",
        ),
        ({"structural_tag": json.dumps({"format": TAGS})}, "tool 'g': Cannot find field $defs"),
    ],
)
async def test_a_schema_that_vllm_refuses_is_refused_with_its_place(
    structured: dict[str, Any], message: str
) -> None:
    with pytest.raises(VLLMValidationError) as caught:
        _ = [one async for one in outputs(ValidatingClient(FakeTrial()), **structured)]
    assert str(caught.value.args[0]).startswith(f"structured output: {message}")


@pytest.mark.parametrize("trial", [None, FakeTrial()], ids=["untried", "tried"])
async def test_a_grammar_has_a_maximum_size_with_every_backend(trial: Any) -> None:
    client = FakeClient(trial)
    assert await count_outputs(client, regex="a" * MAX_GRAMMAR_CHARACTERS) == 2
    tried = trial and [*trial.grammars]
    values = [f"{number:07}" for number in range(MAX_GRAMMAR_CHARACTERS // 10)]
    for structured in (
        {"regex": "a" * (MAX_GRAMMAR_CHARACTERS + 1)},
        {"choice": ["a", "b" * MAX_GRAMMAR_CHARACTERS]},
        {"json": {"properties": {"a": {"enum": values}}}},
    ):
        with pytest.raises(VLLMValidationError, match="characters, at most 500,000") as caught:
            await count_outputs(client, "large", **structured)
        assert ("property 'a'" in str(caught.value)) is ("json" in structured)
    assert (client.received_ids, trial and trial.grammars) == (["a"], tried)


async def test_a_grammar_is_refused_if_its_choices_together_take_long_for_a_token() -> None:
    client = FakeClient(FakeTrial(step_s=0.002))
    assert await count_outputs(client, choices=25, regex="a+") == 2
    with pytest.raises(VLLMValidationError) as caught:
        await count_outputs(client, choices=26, regex="a+")
    assert "0.002 s to follow for a token, times 26 choices; at most 0.05 s" in str(caught.value)
    assert (caught.value.parameter, client.received_ids) == ("structured_outputs", ["a"])


async def test_an_invalid_grammar_is_left_to_vllm_for_its_error_message() -> None:
    assert await count_outputs(FakeClient(FakeTrial("invalid")), regex="a+") == 2


@pytest.mark.parametrize("trial", [None, FakeTrial()], ids=["untried", "tried"])
async def test_a_request_that_no_output_can_satisfy_is_refused_and_aborted(trial: Any) -> None:
    client = FakeClient(trial, "error")
    with pytest.raises(VLLMValidationError, match="nothing satisfies it"):
        await count_outputs(client, regex="a+")
    assert client.finished_ids == ["a"]
    # Without structured outputs the error has another cause.
    assert await count_outputs(client, "b") == 2


async def test_closing_the_outputs_ends_the_request_immediately() -> None:
    client = FakeClient(FakeTrial())
    stream = outputs(client, regex="a+")
    await anext(stream)
    await stream.aclose()
    assert client.finished_ids == ["a"]


async def test_slow_grammars_wait_only_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    elapsed, loop = 0.0, asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda: time.monotonic() + elapsed)
    trial = FakeTrial("fine", COMPILE_S)
    client = FakeClient(trial)
    await count_outputs(client, "first", regex="a")
    second, cancelled, third = (
        asyncio.create_task(count_outputs(client, name, regex=regex))
        for name, regex in (("second", "b"), ("gone", "c"), ("third", "b"))
    )
    await settle()
    assert client.received_ids == ["first"]
    cancelled.cancel()
    # The engine has already compiled this grammar.
    await count_outputs(client, "again", regex="a")
    trial.result = TrialResult("fine", 0.05)
    await count_outputs(client, "quick", regex="d")
    assert client.received_ids == ["first", "again", "quick"]
    elapsed += COMPILE_S
    await second
    assert not third.done()
    elapsed += COMPILE_S
    await third
    assert client.received_ids == ["first", "again", "quick", "second", "third"]
    # The previous request has released its turn.
    trial.result = TrialResult("fine", 0.11)
    await count_outputs(client, "last", regex="e")


async def test_the_number_of_remembered_grammars_is_limited() -> None:
    client = FakeClient(FakeTrial("fine", 0.11))
    client.gate._compiled_keys = {str(number).encode() for number in range(MAX_COMPILED)}
    await count_outputs(client, regex="a")
    assert len(client.gate._compiled_keys) == 1


@pytest.mark.parametrize(
    ("processors", "limit_s"), [(2, SINGLE_THREAD_COMPILE_S), (16, MAX_COMPILE_S)]
)
def test_the_limit_is_lower_for_engines_with_one_thread(
    processors: int, limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    client: Any = FakeClient()
    trial = create_grammar_tester(client)
    assert trial is not None
    assert trial.limit_s == limit_s


def test_there_are_no_trials_without_a_tokenizer_or_with_another_backend() -> None:
    client: Any = FakeClient()
    client.vllm_config.structured_outputs_config.backend = "guidance"
    assert create_grammar_tester(client) is None
    client = FakeClient()
    client.renderer.tokenizer = None
    assert create_grammar_tester(client) is None


async def test_a_failed_trial_is_an_error_that_vllms_server_handles() -> None:
    async def raise_busy(_: Grammar) -> TrialResult:
        raise EngineBusy

    client = FakeClient(SimpleNamespace(try_grammar=raise_busy))
    with pytest.raises(GracefulHTTPError) as refused:
        await count_outputs(client, json=PATTERN)
    assert (refused.value.http_status, client.received_ids) == (503, [])
