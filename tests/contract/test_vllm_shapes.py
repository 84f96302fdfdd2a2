"""Tests of invalid bodies and of invalid tool calls by a model."""

from types import SimpleNamespace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from support.effort import loop_iterations
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponse

from worker.engine.run.requests.bodies import validate_responses_body
from worker.engine.run.server import keep_invalid_tool_input
from worker.engine.seam.translation import invalid_body_error, translate_errors
from worker.errors import InvalidInput
from worker.limits.bodies import check_items


class Part(BaseModel):
    kind: Literal["a", "b"]
    text: str


class Short(BaseModel):
    kind: str


class Shape(BaseModel):
    one: int = 1
    many: list[str] | list[Part]
    either: Part | str | None = None
    alike: Part | Short | None = None
    inner: dict[str, int] = {}
    more: tuple[int, int, int, int, int, int] = (1, 2, 3, 4, 5, 6)


SECRET = "s3cret!"
VALUES = st.recursive(
    st.sampled_from([None, 1, True, 1.5, SECRET, SECRET.encode()]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["kind", "text", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*Shape.model_fields]), VALUES))
def test_a_refusal_names_fields_and_no_values(value: Any) -> None:
    try:
        Shape.model_validate(value)
    except ValidationError as invalid:
        refusal = invalid_body_error(invalid)
        lines = refusal.message.split("; ")
        assert 1 <= len(lines) <= 5
        places = [line.split(": ")[0] for line in lines]
        assert {place.split(".")[0] for place in places} <= set(Shape.model_fields)
        assert refusal.param == places[0]
        assert SECRET not in refusal.message


NO_INTEGER = "Input should be a valid integer, unable to parse string as an integer"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"one": "x", "many": []}, f"one: {NO_INTEGER}"),
        ({}, "many: Field required"),
        ({"many": 5}, "many: Input should be a valid list"),
        ({"many": [], "inner": {"k": "x"}}, f"inner.k: {NO_INTEGER}"),
        # Alternatives of other types are left out.
        (
            {"many": [], "either": {"kind": "c", "text": ""}},
            "either.kind: Input should be 'a' or 'b'",
        ),
        # The most frequent alternative of a type is reported.
        ({"many": [], "alike": {}}, "alike.kind: Field required"),
        (
            {"many": [], "more": ["x"] * 6},
            "; ".join(f"more.{place}: {NO_INTEGER}" for place in range(5)),
        ),
    ],
)
def test_a_refusal_names_each_field_once_and_at_most_five_fields(value: Any, message: str) -> None:
    class Request(BaseModel):
        body: Shape

    shapes: list[tuple[type[BaseModel], Any]] = [(Shape, value), (Request, {"body": value})]
    for shape, sent in shapes:
        with (
            pytest.raises(InvalidInput) as caught,
            translate_errors(SimpleNamespace(errored=False)),
        ):
            shape.model_validate(sent)
        assert caught.value.message == message


# Long lists are validated item by item, with the result of vLLM's server:

PATH = "/v1/responses"
VALID_ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "Hi"},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
    {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": "5"},
    # vLLM adds the missing fields of these items.
    {"type": "reasoning", "summary": []},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]},
]


@pytest.mark.parametrize("wrong", [0, {}, {"type": "message"}, "a", None])
def test_the_first_invalid_item_is_named_and_the_others_are_not_validated(wrong: Any) -> None:
    def check() -> InvalidInput:
        with pytest.raises(InvalidInput) as caught:
            check_items({"input": [*VALID_ITEMS, *[wrong] * 400]}, validate_responses_body)
        return caught.value

    refusal = check()
    assert refusal.param == "input.6"
    assert "input.6" in refusal.message or wrong is None
    # Validating all items takes millions of turns, and these seven a tenth of a million.
    assert loop_iterations(check) < 2_000_000


@pytest.mark.parametrize("items", [VALID_ITEMS * 100, "a", 5, None, [], [{}] * 16])
def test_valid_items_pass_and_short_lists_are_left_to_vllm(items: Any) -> None:
    check_items({"input": items}, validate_responses_body)


# Invalid tool input that a model wrote, in responses of Anthropic's API:


def convert_response(
    finish_reason: str, *arguments: str, content: str | None = None
) -> dict[str, Any]:
    messages: Any = object.__new__(AnthropicServingMessages)
    keep_invalid_tool_input(messages)
    calls = [{"function": {"name": "describe", "arguments": text}} for text in arguments]
    message = {"role": "assistant", "content": content, "tool_calls": calls}
    answer = ChatCompletionResponse.model_validate(
        {
            "model": "demo",
            "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
    )
    found: dict[str, Any] = messages.messages_full_converter(answer).model_dump()
    return found


@pytest.mark.parametrize(
    ("wrong", "finish_reason", "stop_reason"),
    [
        ("[1, 2]", "stop", "end_turn"),
        ("5", "tool_calls", "end_turn"),
        ('{"name": "wor', "length", "max_tokens"),
        ("", "length", "max_tokens"),
    ],
)
def test_tool_input_that_is_not_an_object_is_returned_as_text(
    wrong: str, finish_reason: str, stop_reason: str
) -> None:
    answer = convert_response(finish_reason, wrong)
    assert [(part["type"], part["text"]) for part in answer["content"]] == [("text", wrong)]
    assert answer["stop_reason"] == stop_reason


def test_valid_calls_and_the_preceding_text_remain() -> None:
    answer = convert_response("tool_calls", '{"name": "worker"}', "[1]", content="Look:")
    text, call = answer["content"]
    assert text["text"] == "Look:\n[1]"
    assert (call["type"], call["input"]) == ("tool_use", {"name": "worker"})
    assert answer["stop_reason"] == "tool_use"
