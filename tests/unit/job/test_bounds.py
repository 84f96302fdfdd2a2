"""Bounds of sampling parameters: one table, which holds on both paths."""

from typing import Any

import pytest
from support import ROOT
from support.engine.scripted import CHAT, ScriptedEngine, failure, tokens, yields_of

from worker.job import RawJob
from worker.job.bounds import BOUNDS, INT32, INT64

AT = [
    {"min_tokens": INT32, "max_tokens": INT32},
    {"seed": INT64},
    {"seed": -INT64 - 1},
    {"stop": ["a" * 256] + [str(number) for number in range(63)]},
    {"bad_words": [str(number) for number in range(64)]},
    {"stop_token_ids": list(range(64))},
    {"allowed_token_ids": list(range(300))},
    {"logprob_token_ids": list(range(128))},
    {"logit_bias": {str(number): -100 for number in range(300)}},
    {"repetition_penalty": 10},
    {"presence_penalty": -2, "frequency_penalty": 2},
    {"repetition_detection": {"max_pattern_size": 256, "min_count": 256}},
]
ABOVE: list[tuple[dict[str, Any], str]] = [
    ({"min_tokens": INT32 + 1}, "to 2,147,483,647"),
    ({"seed": INT64 + 1}, "to 9,223,372,036,854,775,807"),
    ({"seed": -INT64 - 2}, "64 bits"),
    ({"stop": "a" * 257}, "one has 257 characters, at most 256"),
    ({"stop": ["a" * 257]}, "one has 257 characters, at most 256"),
    ({"stop": [str(number) for number in range(65)]}, "65 of them, at most 64"),
    ({"bad_words": [str(number) for number in range(65)]}, "65 of them, at most 64"),
    ({"bad_words": ["a" * 257]}, "one has 257 characters"),
    ({"stop_token_ids": list(range(65))}, "65 of them, at most 64"),
    ({"allowed_token_ids": list(range(301))}, "301 of them, at most 300"),
    ({"logprob_token_ids": list(range(129))}, "129 of them, at most 128"),
    ({"logit_bias": {str(number): 1 for number in range(301)}}, "301 of them, at most 300"),
    ({"logit_bias": {"5": 1e300}}, "from -100 to 100"),
    ({"logit_bias": {"5": -100.5}}, "from -100 to 100"),
    ({"repetition_penalty": 10.5}, "above 0 to 10"),
    ({"repetition_penalty": 0}, "above 0 to 10"),
    ({"presence_penalty": 2.5}, "from -2 to 2"),
    ({"use_beam_search": True, "length_penalty": -400}, "from -10 to 10"),
    ({"use_beam_search": True, "length_penalty": 400}, "from -10 to 10"),
    ({"thinking_token_budget": INT32 + 1}, "to 2,147,483,647"),
    ({"prompt_logprobs": INT32 + 1}, "to 2,147,483,647"),
    ({"repetition_detection": {"max_pattern_size": 257}}, "max_pattern_size: from 0 to 256"),
]
# Only in bodies: their texts are numbers for vLLM's server, and they have names of their own.
ABOVE_IN_BODIES: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": INT32 + 1}, "to 2,147,483,647"),
    ({"max_completion_tokens": INT32 + 1}, "to 2,147,483,647"),
    ({"max_output_tokens": INT32 + 1}, "to 2,147,483,647"),
    ({"stop_sequences": ["a" * 257]}, "257 characters"),
    ({"top_logprobs": INT32 + 1}, "to 2,147,483,647"),
    ({"truncate_prompt_tokens": INT32 + 1}, "to 2,147,483,647"),
    ({"repetition_penalty": "1e300"}, "above 0 to 10"),
    ({"seed": str(INT64 + 1)}, "to 9,223,372,036,854,775,807"),
    ({"logit_bias": {"5": "nan"}}, "from -100 to 100"),
]


def body_job(params: dict[str, Any]) -> dict[str, Any]:
    return {"openai_route": CHAT, "openai_input": {"messages": "Hi", **params}}


@pytest.mark.parametrize("params", AT)
async def test_what_is_at_its_bound_reaches_the_engine(params: dict[str, Any]) -> None:
    for job in ({"prompt": "Hi", "sampling_params": params}, body_job(params)):
        with ScriptedEngine(*tokens("a")) as engine:
            assert "error" not in (await yields_of(engine, job))[-1]


@pytest.mark.parametrize(("params", "message"), ABOVE)
async def test_what_is_above_its_bound_is_refused_on_both_paths(
    params: dict[str, Any], message: str
) -> None:
    name = list(params)[-1]
    for job in ({"prompt": "Hi", "sampling_params": params}, body_job(params)):
        with ScriptedEngine(*tokens("a")) as engine:
            error = failure(await yields_of(engine, job))
        assert (error["code"], engine.asked) == (400, [])
        assert message in error["message"]
        assert name in error["message"]
        assert error["param"].endswith(name)


@pytest.mark.parametrize(("params", "message"), ABOVE_IN_BODIES)
async def test_bodies_have_further_names_and_spellings(
    params: dict[str, Any], message: str
) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        error = failure(await yields_of(engine, body_job(params)))
    assert (error["code"], error["param"], engine.asked) == (400, *params, [])
    assert message in error["message"]


async def test_bounds_hold_in_the_form_of_llm_engine_too() -> None:
    job = {"format": "llm_engine", "prompt": "Hi", "stop_sequences": ["a" * 257]}
    with ScriptedEngine(*tokens("a")) as engine:
        assert "257 characters" in failure(await yields_of(engine, job))["message"]


def test_repeated_items_count_once() -> None:
    params = {"allowed_token_ids": [5, 6] * 5_000, "bad_words": ["a", "b"] * 400}
    job = RawJob.read({"prompt": "Hi", "sampling_params": params})
    assert job.sampling_params.vllm == {"allowed_token_ids": [5, 6], "bad_words": ["a", "b"]}


async def test_repeated_items_count_once_in_bodies() -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        await yields_of(engine, body_job({"allowed_token_ids": [5, 6] * 5_000}))
    ((asked),) = engine.asked
    assert isinstance(asked, dict)
    assert asked["allowed_token_ids"] == [5, 6]


def test_more_max_tokens_than_the_engine_can_count_are_cut_in_raw_jobs() -> None:
    for asked in (INT32, INT32 + 1, INT64):
        job = RawJob.read({"prompt": "Hi", "sampling_params": {"max_tokens": asked}})
        assert job.sampling_params.vllm == {"max_tokens": INT32}


@pytest.mark.parametrize("value", [None, True, {}, [], "five", [{}], {"a": {}}, [[1]]])
def test_values_of_wrong_types_are_left_to_vllm(value: Any) -> None:
    for bound in BOUNDS.values():
        assert bound.refusal(value) is None


def test_the_documentation_has_every_bound() -> None:
    rows = [
        line.split(" | ")
        for line in (ROOT / "docs" / "reference" / "errors.md").read_text().splitlines()
    ]
    documented = {
        (name.strip("`| "), row[1].removesuffix(" |"))
        for row in rows
        if len(row) == 2
        for name in row[0].split(", ")
    }
    assert {(name, bound.words) for name, bound in BOUNDS.items()} <= documented
