"""Bounds of sampling parameters: one table, which counts on both paths."""

from typing import Any

import pytest
from support import ROOT
from support.engine.answers import answered, refused
from support.engine.scripted import CHAT, ScriptedEngine, tokens, yields_of

from worker.errors import InvalidInput
from worker.job import RawJob, parse_input
from worker.job.bounds import BOUNDS, INT32, INT64


def names(count: int) -> list[str]:
    return [str(number) for number in range(count)]


AT: dict[str, Any] = {
    **{"min_tokens": INT32, "max_tokens": INT32, "seed": -INT64 - 1, "repetition_penalty": 10},
    **{"presence_penalty": -2, "frequency_penalty": 2, "stop": ["a" * 256, *names(63)]},
    **{"bad_words": names(64), "stop_token_ids": list(range(64))},
    **{"allowed_token_ids": list(range(300)), "logprob_token_ids": list(range(128))},
    "logit_bias": dict.fromkeys(names(300), -100),
    "repetition_detection": {"max_pattern_size": 256, "min_count": 256},
}
TO_INT32 = f"from {-INT32:,} to {INT32:,}"
TO_INT64 = f"from {-INT64 - 1:,} to {INT64:,}"
ABOVE: list[tuple[str, Any, str]] = [
    ("min_tokens", INT32 + 1, TO_INT32),
    ("thinking_token_budget", INT32 + 1, TO_INT32),
    ("prompt_logprobs", INT32 + 1, TO_INT32),
    ("seed", INT64 + 1, TO_INT64),
    ("stop", "a" * 257, "one has 257 characters, at most 256"),
    ("stop", ["a" * 257], "one has 257 characters, at most 256"),
    ("stop", names(65), "65 of them, at most 64"),
    ("bad_words", names(65), "65 of them, at most 64"),
    ("bad_words", ["a" * 257], "one has 257 characters, at most 256"),
    ("stop_token_ids", list(range(65)), "65 of them, at most 64"),
    ("allowed_token_ids", list(range(301)), "301 of them, at most 300"),
    ("logprob_token_ids", list(range(129)), "129 of them, at most 128"),
    ("logit_bias", dict.fromkeys(names(301), 1), "301 of them, at most 300"),
    ("logit_bias", {"5": 1e300}, "from -100 to 100"),
    ("logit_bias", {"5": -100.5}, "from -100 to 100"),
    ("repetition_penalty", 10.5, "above 0 to 10"),
    ("repetition_penalty", 0, "above 0 to 10"),
    ("presence_penalty", 2.5, "from -2 to 2"),
    ("repetition_detection", {"max_pattern_size": 257}, "max_pattern_size: from 0 to 256"),
]
# Their texts are numbers for vLLM's server, and they have names of their own.
ABOVE_IN_BODIES: list[tuple[str, Any, str]] = [
    ("max_tokens", INT32 + 1, TO_INT32),
    ("max_completion_tokens", INT32 + 1, TO_INT32),
    ("max_output_tokens", INT32 + 1, TO_INT32),
    ("stop_sequences", ["a" * 257], "one has 257 characters, at most 256"),
    ("top_logprobs", INT32 + 1, TO_INT32),
    ("truncate_prompt_tokens", INT32 + 1, TO_INT32),
    ("repetition_penalty", "1e300", "above 0 to 10"),
    ("seed", str(INT64 + 1), TO_INT64),
    ("logit_bias", {"5": "nan"}, "from -100 to 100"),
]


def raw(**params: Any) -> dict[str, Any]:
    return {"prompt": "Hi", "sampling_params": params}


def body(**params: Any) -> dict[str, Any]:
    return {"openai_route": CHAT, "openai_input": {"messages": "Hi", **params}}


async def test_what_is_at_its_bound_is_accepted_on_both_paths() -> None:
    for job in (raw(**AT), body(**AT)):
        assert "error" not in (await answered(job, *tokens("a")))[-1]


@pytest.mark.parametrize(("name", "value", "message"), ABOVE)
async def test_raw_jobs_above_a_bound_are_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_input(raw(**{name: value}))
    expected = (name, f"sampling_params.{name}: {message}")
    assert (caught.value.param, caught.value.message) == expected


@pytest.mark.parametrize(("name", "value", "message"), [*ABOVE, *ABOVE_IN_BODIES])
async def test_bodies_above_a_bound_are_refused(name: str, value: Any, message: str) -> None:
    error = await refused(body(**{name: value}))
    assert (error["code"], error["param"]) == (400, name)
    assert error["message"] == f"{name}: {message}"


async def test_repeated_items_count_once() -> None:
    params = {"allowed_token_ids": [5, 6] * 5_000, "bad_words": ["a", "b"] * 400}
    once = {"allowed_token_ids": [5, 6], "bad_words": ["a", "b"]}
    assert RawJob.read(raw(**params)).sampling_params.vllm == once
    with ScriptedEngine(*tokens("a")) as engine:
        await yields_of(engine, body(**params))
    (asked,) = engine.asked
    assert isinstance(asked, dict)
    assert {name: asked[name] for name in once} == once


def test_more_max_tokens_than_the_engine_can_count_are_cut_in_raw_jobs() -> None:
    assert RawJob.read(raw(max_tokens=INT64)).sampling_params.vllm == {"max_tokens": INT32}


@pytest.mark.parametrize("value", [None, True, {}, [], "five", [{}], {"a": {}}, [[1]]])
def test_values_of_wrong_types_are_left_to_vllm(value: Any) -> None:
    assert [bound.refusal(value) for bound in BOUNDS.values()] == [None] * len(BOUNDS)


def test_the_documentation_has_every_bound() -> None:
    lines = (ROOT / "docs" / "reference" / "errors.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.count(" | ") == 1]
    documented = {(name.strip("`"), words) for names, words in rows for name in names.split(", ")}
    assert {(name, bound.words) for name, bound in BOUNDS.items()} <= documented
