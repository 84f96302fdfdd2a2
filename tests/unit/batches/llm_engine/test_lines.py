"""The lines that LLM Engine's requests become."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.batches.llm_engine.bodies import plain
from worker.batches.llm_engine.lines import of_bodies, of_prompts, route_of
from worker.batches.llm_engine.models import Content
from worker.errors import InvalidInput

CONTENT = Content(max_new_tokens=3, temperature=0)
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
CHATS = "/v1/chat/completions"


def prompts(*texts: Any, content: Content = CONTENT, **keys: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in of_prompts(texts, content, "demo", **keys)]


def bodies(*items: Any, **keys: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in of_bodies(items, CHATS, "demo", **keys)]


def test_prompts_are_completions_with_the_shared_parameters() -> None:
    body = {"model": "demo", "max_tokens": 3, "temperature": 0}
    completion = {"method": "POST", "url": "/v1/completions"}
    assert prompts("a", "b") == [
        {"custom_id": "0", **completion, "body": {**body, "prompt": "a"}},
        {"custom_id": "1", **completion, "body": {**body, "prompt": "b"}},
    ]


def test_every_parameter_of_v1_has_its_name_in_openais_api() -> None:
    same = {"temperature": 0.5, "top_k": 5, "top_p": 0.5, "skip_special_tokens": False}
    same |= {"presence_penalty": 1, "frequency_penalty": 2}
    renamed = {"max_new_tokens": 3, "stop_sequences": ["x"], "return_token_log_probs": True}
    (line,) = prompts("a", content=Content.model_validate(same | renamed), priority=7)
    ours = {"model": "demo", "max_tokens": 3, "stop": ["x"], "logprobs": 1}
    assert line["body"] == {**same, **ours, "priority": 7, "prompt": "a"}


@pytest.mark.parametrize("wrong", [3, None, ["a"], {"prompt": "a"}])
def test_a_prompt_that_is_no_text_is_refused_by_its_place(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match=r"content\.prompts\.1: a prompt is a text"):
        prompts("a", wrong)


def test_the_batch_decides_model_and_stream_of_a_body() -> None:
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    (line,) = bodies({**CHAT, **stream, "model": "other", "seed": None, "n": 2})
    body = {**CHAT, "n": 2, "model": "demo"}
    assert line == {"custom_id": "0", "method": "POST", "url": CHATS, "body": body}


@pytest.mark.parametrize(
    ("item", "url"),
    [
        (CHAT, CHATS),
        ({"prompt": "Hi", "messages": None}, "/v1/completions"),
        ({"input": "Hi"}, "/v1/responses"),
    ],
)
def test_a_body_tells_its_route(item: dict[str, Any], url: str) -> None:
    assert route_of(item) == url


@pytest.mark.parametrize("item", [None, "Hi", [], {}, {"model": "demo"}, {**CHAT, "prompt": "Hi"}])
def test_what_is_no_body_is_refused_by_its_place(item: Any) -> None:
    with pytest.raises(InvalidInput, match=r"content\.0: an object with one of messages"):
        route_of(item)
    with pytest.raises(InvalidInput, match=r"content\.2: an object with one of messages"):
        bodies(CHAT, CHAT, item)


def test_the_first_body_for_another_route_is_refused_by_its_place() -> None:
    with pytest.raises(
        InvalidInput, match=rf"{CHATS}.*/v1/completions|/v1/completions.*{CHATS}"
    ) as no:
        bodies(CHAT, CHAT, {"prompt": "Hi"}, {"input": "Hi"})
    assert no.value.param == "content.2"


def test_a_body_keeps_its_own_priority() -> None:
    lines = bodies(CHAT, {**CHAT, "priority": 0}, {**CHAT, "priority": -1}, priority=5)
    assert [line["body"]["priority"] for line in lines] == [5, 5, -1]


@pytest.mark.parametrize("wrong", ["\ud800", float("nan"), float("inf")])
def test_what_json_can_not_hold_is_refused_by_its_place(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match=r"content\.1: a (text|number) in it"):
        bodies(CHAT, {**CHAT, "user": wrong})


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=10,
)


@settings(max_examples=50)
@given(st.lists(VALUES, min_size=1))
def test_a_body_is_one_line_and_comes_through_unchanged(values: list[Any]) -> None:
    lines = list(of_bodies(({**CHAT, "any": [value]} for value in values), CHATS, "demo"))
    assert [line.count(b"\n") for line in lines] == [1] * len(values)
    assert [json.loads(line)["body"]["any"] for line in lines] == [[value] for value in values]


# Nulls, which LLM Engine's client writes wherever nothing was given:

SCHEMA: dict[str, Any] = {"enum": ["a", None], "default": None, "properties": {"b": None}}
CALL = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
USER = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
NAMED = {"name": "a", "strict": True}


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({"seed": None, "n": 1}, {"n": 1}),
        ({"messages": [{**USER, "name": None}]}, {"messages": [USER]}),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "Hi", "x": None}]}
                ]
            },
            {"messages": [USER]},
        ),
        (
            {"messages": [{"content": None, "tool_calls": [{**CALL, "index": None}]}]},
            {"messages": [{"tool_calls": [CALL]}]},
        ),
        (
            {"tools": [{"function": {"name": "f", "description": None}}]},
            {"tools": [{"function": {"name": "f"}}]},
        ),
        # A schema has its name in OpenAI's API.
        (
            {"response_format": {"json_schema": {**NAMED, "description": None, "schema_": SCHEMA}}},
            {"response_format": {"json_schema": {**NAMED, "schema": SCHEMA}}},
        ),
    ],
)
def test_nulls_are_left_out(sent: dict[str, Any], expected: dict[str, Any]) -> None:
    assert plain(sent) == expected


def test_nulls_that_are_values_stay() -> None:
    tool = {"function": {"name": "f", "parameters": SCHEMA}}
    sent = {"tools": [tool], "guided_json": SCHEMA, "metadata": {"a": None}}
    assert plain(sent) == sent
