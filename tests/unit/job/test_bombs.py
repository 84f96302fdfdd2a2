"""Refusals of small requests that would keep the engine, or its event loop, busy for long."""

from typing import Any

import pytest
from support.engine.scripted import CHAT, ScriptedEngine, failure, tokens, yields_of

from worker.job import RawJob

MESSAGES = [{"role": "user", "content": "Hi"}]
BOMBS = [
    ({"regex": "a" * 10_001}, "at most 10,000 characters"),
    ({"grammar": 'root ::= "' + "a" * 50_000 + '"'}, "at most 50,000 characters"),
    ({"json": {"enum": ["a" * 64_001]}}, "at most 64,000 characters"),
    ({"choice": [str(number) for number in range(1_001)]}, "at most 1,000 choices"),
    ({"regex": "((a{0,100}){0,100}){0,100}"}, "at most 2 counted repetitions inside each other"),
]
HARMLESS = [
    {"regex": "a" * 10_000},
    {"choice": [str(number) for number in range(1_000)]},
    {"grammar": 'root ::= "a" root | "b"'},
    {"grammar": "root ::= root"},  # it never ends, and the compiler says so at once
]


@pytest.mark.parametrize(("structured", "message"), BOMBS)
async def test_structures_that_take_long_to_compile_are_refused_on_both_paths(
    structured: dict[str, Any], message: str
) -> None:
    params = {"structured_outputs": structured}
    body = {"messages": MESSAGES, **params}
    for job in (
        {"prompt": "Hi", "sampling_params": params},
        {"openai_route": CHAT, "openai_input": body},
    ):
        with ScriptedEngine(*tokens("a")) as engine:
            error = failure(await yields_of(engine, job))
        assert (error["code"], engine.asked) == (400, [])
        assert message in error["message"]


@pytest.mark.parametrize("structured", HARMLESS)
def test_structures_that_compile_quickly_are_accepted(structured: dict[str, Any]) -> None:
    job = RawJob.read({"prompt": "Hi", "sampling_params": {"structured_outputs": structured}})
    assert job.sampling_params.vllm["structured_outputs"] == structured


async def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100_000):
        schema = {"items": schema}
    job = {"prompt": "Hi", "sampling_params": {"guided_json": schema}}
    with ScriptedEngine(*tokens("a")) as engine:
        assert failure(await yields_of(engine, job))["code"] == 400


async def test_an_item_of_a_list_with_too_much_fails_alone() -> None:
    params = [{"guided_regex": "a"}, {"guided_regex": "a" * 10_001}]
    with ScriptedEngine(*tokens("a")) as engine:
        ((first, second),) = [
            answer["outputs"]
            for answer in await yields_of(
                engine, {"prompts": ["a", "b"], "sampling_params": params}
            )
        ]
    assert "choices" in first
    assert second["error"]["code"] == 400


@pytest.mark.parametrize(
    ("route", "body", "field"),
    [
        (CHAT, {"messages": [{}] * 2_049}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [{}] * 2_049}]}, "messages"),
        ("/v1/completions", {"prompt": ["a"] * 2_049}, "prompt"),
    ],
)
async def test_a_list_that_takes_long_to_refuse_is_refused_by_its_length(
    route: str, body: dict[str, Any], field: str
) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        error = failure(await yields_of(engine, {"openai_route": route, "openai_input": body}))
    assert (error["code"], error["param"], engine.asked) == (400, field, [])


async def test_token_ids_may_be_many() -> None:
    body = {"prompt": [1] * 5_000}
    with ScriptedEngine(*tokens("a")) as engine:
        await yields_of(engine, {"openai_route": "/v1/completions", "openai_input": body})
    assert [asked["prompt"] for asked in engine.asked if isinstance(asked, dict)] == [[1] * 5_000]


@pytest.mark.parametrize("route", ["/version?x=1", "/v1/version?beta=true", "/%76ersion"])
async def test_a_query_string_and_escapes_change_nothing(route: str) -> None:
    with ScriptedEngine() as engine:
        assert await yields_of(engine, {"openai_route": route}) == [{"version": "0"}]
