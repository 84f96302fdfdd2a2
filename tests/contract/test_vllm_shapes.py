"""Bodies and answers of the wrong shape: refusals name fields, and what a model wrote is kept."""

from types import SimpleNamespace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from support.effort import turns
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponse

from worker.engine.run.requests.bodies import check_items
from worker.engine.run.server import keep_what_was_written
from worker.engine.seam.translation import translated, wrong_shape
from worker.errors import InvalidInput


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
        refusal = wrong_shape(invalid)
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
        (
            {"many": [], "either": {"kind": "c", "text": ""}},
            "either.kind: Input should be 'a' or 'b'; either: Input should be a valid string",
        ),
        # The most frequent one of the alternatives of a type.
        ({"many": [], "alike": {}}, "alike.kind: Field required"),
        (
            {"many": [], "more": ["x"] * 6},
            "; ".join(f"more.{place}: {NO_INTEGER}" for place in range(5)),
        ),
    ],
)
def test_a_field_is_named_once_and_no_more_than_five_are(value: Any, message: str) -> None:
    class Request(BaseModel):
        body: Shape

    shapes: list[tuple[type[BaseModel], Any]] = [(Shape, value), (Request, {"body": value})]
    for shape, sent in shapes:
        with pytest.raises(InvalidInput) as caught, translated(SimpleNamespace(errored=False)):
            shape.model_validate(sent)
        assert caught.value.message == message


# Long lists are checked item by item, as vLLM's server checks them:

PATH = "/v1/responses"
RIGHT: list[dict[str, Any]] = [
    {"role": "user", "content": "Hi"},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
    {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": "5"},
    # What these lack vLLM completes.
    {"type": "reasoning", "summary": []},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]},
]


@pytest.mark.parametrize("wrong", [0, {}, {"type": "message"}, "a", None])
def test_the_first_wrong_item_is_named_and_the_others_are_not_looked_at(wrong: Any) -> None:
    def check() -> InvalidInput:
        with pytest.raises(InvalidInput) as caught:
            check_items({"input": [*RIGHT, *[wrong] * 400]})
        return caught.value

    refusal = check()
    assert refusal.param == "input.6"
    assert "input.6" in refusal.message or wrong is None
    # All of them take millions of turns, these seven a tenth of a million.
    assert turns(check) < 2_000_000


@pytest.mark.parametrize("items", [RIGHT * 100, "a", 5, None, [], [{}] * 16])
def test_right_items_pass_and_what_is_short_is_left_to_vllm(items: Any) -> None:
    check_items({"input": items})


# A tool's input that a model wrote wrong, in answers of Anthropic's API:


def converted(finish_reason: str, *arguments: str, content: str | None = None) -> dict[str, Any]:
    messages: Any = object.__new__(AnthropicServingMessages)
    keep_what_was_written(messages)
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
def test_what_is_no_object_comes_as_text(wrong: str, finish_reason: str, stop_reason: str) -> None:
    answer = converted(finish_reason, wrong)
    assert [(part["type"], part["text"]) for part in answer["content"]] == [("text", wrong)]
    assert answer["stop_reason"] == stop_reason


def test_the_other_calls_and_the_text_before_stay() -> None:
    answer = converted("tool_calls", '{"name": "worker"}', "[1]", content="Look:")
    text, call = answer["content"]
    assert text["text"] == "Look:\n[1]"
    assert (call["type"], call["input"]) == ("tool_use", {"name": "worker"})
    assert answer["stop_reason"] == "tool_use"
