"""Messages of chats in the forms that callers send."""

import json
from typing import Any

import pytest

from worker.errors import InvalidInput
from worker.job import RawJob
from worker.media.walker import DENIED_PART_KEYS, URL_KEYS
from worker.messages import MEDIA_KEYS, OPERATOR_TYPES, REASONING_KEYS, convert_messages

URL = "data:image/png;base64,AAAA"
USER = {"role": "user", "content": "Hi"}


def assistant(**keys: Any) -> dict[str, Any]:
    return {"role": "assistant", **keys}


def convert(message: dict[str, Any]) -> dict[str, Any]:
    (converted,) = convert_messages([message])
    return converted


def convert_part(part: Any) -> dict[str, Any]:
    (converted,) = convert({"role": "user", "content": [part]})["content"]
    return dict(converted)


def convert_call(call: Any) -> dict[str, Any]:
    (converted,) = convert(assistant(tool_calls=[call]))["tool_calls"]
    return dict(converted)


def test_the_first_name_of_the_reasoning_with_a_value_counts() -> None:
    first, second = REASONING_KEYS
    for keys, reasoning in (
        ({first: "a"}, "a"),
        ({second: "b"}, "b"),
        ({first: "a", second: "b"}, "a"),
        ({first: None, second: "b"}, "b"),
        ({first: "", second: "b"}, ""),
    ):
        assert convert(assistant(content="A", **keys)) == assistant(
            content="A", reasoning=reasoning
        )
    assert convert(assistant(content="A", **{second: None})) == assistant(content="A")


@pytest.mark.parametrize(
    ("call", "id_", "arguments"),
    [
        ({"id": "c", "function": {"name": "f", "arguments": '{"a": 1}'}}, "c", '{"a": 1}'),
        ({"id": "c", "function": {"name": "f", "arguments": {"a": "ü"}}}, "c", '{"a": "ü"}'),
        (
            {"id": "c", "function": {"name": "f", "arguments": {"a": 10**23}}},
            "c",
            f'{{"a": {10**23}}}',
        ),
        # A model's answer may have been cut off.
        ({"id": "c", "function": {"name": "f", "arguments": '{"a": '}}, "c", '{"a": '),
        ({"id": None, "type": "function", "function": {"name": "f", "arguments": None}}, "", "{}"),
        ({"function": {"name": "f"}}, "", "{}"),
        ({"name": "f", "arguments": {}}, "", "{}"),
    ],
    ids=str,
)
def test_a_tool_call_has_the_form_of_openai(call: Any, id_: str, arguments: str) -> None:
    function = {"name": "f", "arguments": arguments}
    assert convert_call(call) == {"id": id_, "type": "function", "function": function}


def test_a_function_call_becomes_a_tool_call() -> None:
    former = assistant(content=None, function_call={"name": "f", "arguments": "{}"}, tool_calls=[])
    (call,) = convert(former)["tool_calls"]
    assert call == {"id": "", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    # Clients write null for the values that an answer does not have.
    for content in ("A", None):
        answer = assistant(content=content, function_call=None, tool_calls=None, name=None)
        assert convert(answer) == assistant(content=content)
    assert convert({"role": "user", "content": None}) == {"role": "user"}


def test_half_of_a_surrogate_pair_is_replaced_in_raw_jobs() -> None:
    emoji, half = "\U0001f600", "\ud83d"
    call = {"type": "function", "function": {"name": "f", "arguments": {half: half + emoji}}}
    turn = assistant(content=[half, {"type": "text", "text": half}], tool_calls=[call])
    (found,) = RawJob.from_input({"messages": [turn]}).chat_messages or [{}]
    assert found["content"] == [{"type": "text", "text": "\ufffd"}] * 2
    (converted,) = found["tool_calls"]
    assert json.loads(converted["function"]["arguments"]) == {"\ufffd": f"\ufffd{emoji}"}


def test_a_refusal_is_content() -> None:
    assert convert(assistant(content=None, refusal="No."))["content"] == "No."
    assert convert(assistant(content="A", refusal=None))["content"] == "A"


IMAGE = {"type": "image_url", "image_url": {"url": URL}}


@pytest.mark.parametrize(
    ("part", "converted"),
    [
        ("a", {"type": "text", "text": "a"}),
        ({"type": "input_text", "text": "a", "x": 1}, {"type": "text", "text": "a", "x": 1}),
        ({"type": "output_text", "text": "a"}, {"type": "text", "text": "a"}),
        ({"type": "refusal", "refusal": "a"}, {"type": "refusal", "refusal": "a"}),
        ({"type": "thinking", "thinking": "a"}, {"type": "thinking", "thinking": "a"}),
        ({"type": "tool_reference", "name": "a"}, {"type": "tool_reference", "name": "a"}),
        (IMAGE, IMAGE),
        ({"type": "image_url", "image_url": URL}, IMAGE),
        ({"image_url": URL}, IMAGE),
        ({"type": "input_image", "image_url": URL, "detail": "low"}, {**IMAGE, "detail": "low"}),
        # Of transformers:
        ({"type": "image", "image": URL}, IMAGE),
        ({"type": "image", "url": URL, "uuid": "1"}, {**IMAGE, "uuid": "1"}),
        ({"type": "video", "video": URL}, {"type": "video_url", "video_url": {"url": URL}}),
        ({"type": "audio", "audio": URL}, {"type": "audio_url", "audio_url": {"url": URL}}),
        # Of Anthropic's API:
        ({"type": "image", "source": {"type": "url", "url": URL}}, IMAGE),
        (
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
            },
            IMAGE,
        ),
    ],
    ids=json.dumps,
)
def test_a_part_has_the_form_of_openai(part: Any, converted: dict[str, Any]) -> None:
    assert convert_part(part) == converted
    assert convert_part(converted) == converted


@pytest.mark.parametrize(
    ("messages", "place", "message"),
    [
        (5, "messages", "valid list"),
        ([USER, "Hi"], "messages.1", "valid dictionary"),
        ([{**USER, "content": 5}], "messages.0.content", "valid string"),
        ([{**USER, "content": {"text": "a"}}], "messages.0.content", "valid string"),
        ([assistant(refusal=5)], "messages.0.refusal", "valid string"),
        ([assistant(tool_calls={"0": 1})], "messages.0.tool_calls", "valid list"),
        *(
            ([USER, {**USER, "content": ["a", part]}], f"messages.1.content.1{place}", words)
            for part, place, words in (
                (5, "", "valid dictionary"),
                ({"type": "text", "content": "a"}, ".text", "valid string"),
                ({"type": "text", "text": None}, ".text", "valid string"),
                ({"type": "refusal", "text": "a"}, ".refusal", "valid string"),
                ({"text": "a"}, ".type", "one of text, input_text"),
                ({"type": "file", "file": {}}, ".type", "tool_reference, image_url, video_url"),
                ({"type": ["text"]}, ".type", "one of text"),
                ({"type": "image"}, "", '{"type": "image_url", "image_url": {"url": "data:..."}}'),
                ({"type": "video", "video": [URL]}, "", '{"type": "video_url", "video_url": '),
            )
        ),
        *(
            ([USER, assistant(tool_calls=[call])], f"messages.1.tool_calls.0{place}", words)
            for call, place, words in (
                (5, "", "valid dictionary"),
                ({"id": "c", "type": "function"}, ".function", "valid dictionary"),
                ({"id": 5, "function": {"name": "f"}}, ".id", "valid string"),
                ({"function": {"arguments": "{}"}}, ".function.name", "valid string"),
                (
                    {"function": {"name": "f", "arguments": [1]}},
                    ".function.arguments",
                    "JSON text or an object",
                ),
                ({"type": "custom", "custom": {"name": "f"}}, ".type", "'function'"),
            )
        ),
    ],
    ids=str,
)
def test_a_wrong_form_is_refused_by_its_place(messages: Any, place: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        convert_messages(messages)
    assert caught.value.param == place
    assert caught.value.message.startswith(f"{place}: Input should be ")
    assert message in caught.value.message


def test_parts_of_an_operators_script_are_unchanged() -> None:
    assert DENIED_PART_KEYS.keys() > OPERATOR_TYPES
    for name in OPERATOR_TYPES:
        for part in ({"type": name, name: URL}, {name: URL}):
            assert convert_part(part) == part


def test_the_walker_finds_the_media_of_all_types() -> None:
    assert MEDIA_KEYS == {**URL_KEYS, "input_audio": "input_audio"}
