"""Tests of invalid bodies and of invalid tool calls by a model."""

import importlib
import json
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError
from support.effort import loop_iterations
from support.releases import needs_pinned_vllm
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponse
from vllm.exceptions import VLLMError

from worker.engine.run.corrections import keep_invalid_tool_input
from worker.engine.run.requests.limits import check_items
from worker.engine.seam.body_errors import invalid_body_error
from worker.engine.seam.translation import translate_errors
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


# Bodies of vLLM's routes, of which one value is made wrong. All have alternatives: for the whole
# body, for a value, or for an object in it.
PROTOCOLS = "vllm.entrypoints."
EMBED, SCORE, POOL, TOKENIZE, CHATS, COMPLETIONS, RESPONSES = (
    (f"{PROTOCOLS}{module}.protocol", name)
    for module, name in (
        ("pooling.embed", "EmbeddingRequest"),
        ("pooling.scoring", "ScoreRequest"),
        ("pooling.pooling", "PoolingRequest"),
        ("serve.tokenize", "TokenizeRequest"),
        ("openai.chat_completion", "ChatCompletionRequest"),
        ("openai.completion", "CompletionRequest"),
        ("openai.responses", "ResponsesRequest"),
    )
)
SPEAKING = [{"role": "user", "content": "a"}]
CHAT_FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}
RIGHT_BODIES: list[tuple[tuple[str, str], dict[str, Any]]] = [
    (EMBED, {"input": "a", "dimensions": 4, "encoding_format": "float"}),
    (EMBED, {"input": ["a"], "dimensions": 4}),
    (EMBED, {"messages": SPEAKING, "encoding_format": "float"}),
    (SCORE, {"text_1": "a", "text_2": ["b"]}),
    (SCORE, {"data_1": "a", "data_2": "b", "priority": 1}),
    (POOL, {"input": "a", "priority": 1}),
    (POOL, {"messages": SPEAKING}),
    (TOKENIZE, {"prompt": "a", "add_special_tokens": True}),
    (TOKENIZE, {"messages": SPEAKING, "add_generation_prompt": False}),
    (CHATS, {"messages": SPEAKING, "stop": "a", "response_format": CHAT_FORMAT}),
    (CHATS, {"messages": SPEAKING, "tools": [{"type": "function", "function": {"name": "f"}}]}),
    (COMPLETIONS, {"prompt": "a", "stop": ["b"], "logit_bias": {"5": 1.0}}),
    (RESPONSES, {"input": "a", "tools": [{"type": "function", "name": "f"}]}),
]
WRONG_VALUES: list[Any] = [5, 1.5, True, SECRET, [], {}, [None], {"zz": 1}]


def places_in(value: Any) -> list[tuple[Any, ...]]:
    """Return the places of all values in a value, as keys and indexes."""
    pairs: Any = value.items() if isinstance(value, dict) else ()
    pairs = enumerate(value) if isinstance(value, list) else pairs
    return [(key, *rest) for key, item in pairs for rest in [(), *places_in(item)]]


def put(body: dict[str, Any], place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed: dict[str, Any] = json.loads(json.dumps(body))
    holder: Any = changed
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    return changed


def is_about(field: str, place: str) -> bool:
    return f"{field}.".startswith(f"{place}.") or f"{place}.".startswith(f"{field}.")


# A role may be any text, so the rest of the message is wrong for another role.
PLACES = [
    (protocol, body, place)
    for protocol, body in RIGHT_BODIES
    for place in places_in(body)
    if place[-1] != "role"
]


@needs_pinned_vllm
@given(st.sampled_from(PLACES), st.sampled_from(WRONG_VALUES))
def test_a_refusal_names_only_the_wrong_value(
    case: tuple[tuple[str, str], dict[str, Any], tuple[Any, ...]], value: Any
) -> None:
    (module, name), body, place = case
    request = TypeAdapter(getattr(importlib.import_module(module), name))
    request.validate_python(json.loads(json.dumps(body)))
    try:
        request.validate_python(put(body, place, value))
    except ValidationError as invalid:
        refusal = invalid_body_error(invalid)
        path = ".".join(map(str, place))
        fields = [one.split(": ")[0] for one in refusal.message.split("; ")]
        assert all(is_about(field, path) for field in fields), refusal.message
        assert refusal.param == fields[0]
        assert SECRET not in refusal.message
    except (VLLMError, TypeError, ValueError):
        pass  # a validator of vLLM's own, whose message the worker passes on


@needs_pinned_vllm
@pytest.mark.parametrize(
    ("protocol", "body", "message"),
    [
        (EMBED, {}, "input: Field required, or messages"),
        (EMBED, {"input": 5}, "input: Input should be a valid list or a valid string"),
        (EMBED, {"messages": 5}, "messages: Input should be a valid list"),
        (SCORE, {"text_1": "a", "text_2": 5}, "text_2: Input should be a valid string or a valid"),
        (
            CHATS,
            {"messages": SPEAKING, "response_format": {**CHAT_FORMAT, "json_schema": 5}},
            "response_format.json_schema: Input should be a valid dictionary",
        ),
        (CHATS, {"messages": SPEAKING, "stop": 5}, "stop: Input should be a valid string or a"),
        (CHATS, {"messages": [{"content": "a"}]}, "messages.0.role: Field required"),
        (
            COMPLETIONS,
            {"prompt": "a", "logit_bias": {"x" * 10**6: "b"}},
            f"logit_bias.{'x' * 64}: ",
        ),
        (COMPLETIONS, {"prompt": [1, 5.5]}, "prompt.1: Input should be a valid integer"),
    ],
)
def test_the_alternative_that_fits_best_is_reported(
    protocol: tuple[str, str], body: Any, message: str
) -> None:
    request = TypeAdapter(getattr(importlib.import_module(protocol[0]), protocol[1]))
    with pytest.raises(ValidationError) as caught:
        request.validate_python(body)
    assert invalid_body_error(caught.value).message.startswith(message)


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
            check_items({"input": [*VALID_ITEMS, *[wrong] * 400]})
        return caught.value

    refusal = check()
    assert refusal.param == "input.6"
    assert "input.6" in refusal.message or wrong is None
    # Validating all items takes millions of turns, and these seven a tenth of a million.
    assert loop_iterations(check) < 2_000_000


@pytest.mark.parametrize("items", [VALID_ITEMS * 100, "a", 5, None, [], [{}] * 16])
def test_valid_items_pass_and_short_lists_are_left_to_vllm(items: Any) -> None:
    check_items({"input": items})


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
