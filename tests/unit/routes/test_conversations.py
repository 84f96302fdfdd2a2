"""Content blocks of Anthropic's API, and items of OpenAI's Responses API, as vLLM reads them."""

import copy
from typing import Any

import pytest

from worker.errors import InvalidInput
from worker.job import OpenAIJob
from worker.routes.conversations import prepare_anthropic_messages, prepare_responses_input

URL = "data:image/png;base64,AAAA"
SOURCE = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
IMAGE = {"type": "image", "source": SOURCE}
URL_IMAGE = {"type": "image", "source": {"type": "url", "url": URL}}
SEARCH_RESULT = {
    "type": "search_result",
    "source": "https://example.com/a",
    "title": "Chunks",
    "content": [{"type": "text", "text": "They grow."}, {"type": "text", "text": "1, 3, 9"}],
    "citations": {"enabled": True},
}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def document(source: Any, **keys: Any) -> dict[str, Any]:
    return {"type": "document", "source": source, **keys}


def tool_result(content: Any, **keys: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **keys}


def prepare(body: dict[str, Any]) -> None:
    prepare_anthropic_messages(body, OpenAIJob(route="/v1/messages", body=body), None)


def convert(content: Any, role: str = "user") -> Any:
    body = {"messages": [{"role": role, "content": content}]}
    before = copy.deepcopy(body)
    sent = dict(body)
    prepare(sent)
    assert body == before
    return sent["messages"][0]["content"]


# A block, and the blocks that vLLM gets, in a message of the user and in a tool's result.
BLOCKS: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    (text("a"), [text("a")]),
    (text(""), [text("")]),
    ({**text("a"), "citations": None, "x": 1}, [{**text("a"), "citations": None, "x": 1}]),
    (IMAGE, [IMAGE]),
    (URL_IMAGE, [URL_IMAGE]),
    (SEARCH_RESULT, [text("Chunks\nhttps://example.com/a\nThey grow.\n1, 3, 9")]),
    ({"type": "search_result", "content": "They grow."}, [text("They grow.")]),
    (document({"type": "text", "media_type": "text/plain", "data": "a"}), [text("a")]),
    (
        document({"type": "text", "data": "a"}, title="T", context="C", citations=None),
        [text("T\nC\na")],
    ),
    (document({"type": "content", "content": "a"}, title="T"), [text("T\na")]),
    (
        document({"type": "content", "content": [text("a"), IMAGE]}, title="T"),
        [text("T"), text("a"), IMAGE],
    ),
    (document({"type": "content", "content": [IMAGE]}), [IMAGE]),
    ({"type": "tool_reference", "tool_name": "get_weather"}, [text("get_weather")]),
    ({"type": "tool_reference", "name": "get_weather"}, [text("get_weather")]),
    # Of transformers and of OpenAI's APIs:
    ({"type": "image", "image": URL}, [URL_IMAGE]),
    ({"type": "image_url", "image_url": {"url": URL}}, [URL_IMAGE]),
    ({"type": "input_image", "image_url": URL}, [URL_IMAGE]),
]


@pytest.mark.parametrize(("block", "expected"), BLOCKS, ids=str)
def test_a_blocks_text_is_text_for_vllm(block: Any, expected: Any) -> None:
    assert convert([text("Look:"), block]) == [text("Look:"), *expected]
    assert convert([tool_result([block, text("b")])]) == [tool_result([*expected, text("b")])]
    assert convert(expected) == expected


@pytest.mark.parametrize(
    ("role", "blocks"),
    [
        ("user", [tool_result("a"), tool_result(None), tool_result([]), tool_result([IMAGE])]),
        (
            "assistant",
            [
                {"type": "thinking", "thinking": "a", "signature": "b"},
                {"type": "redacted_thinking", "data": "a"},
                text("a"),
                {"type": "tool_use", "id": "1", "name": "f", "input": {}},
            ],
        ),
        ("system", [text("a"), {"type": "tool_addition", "tool": {}}]),
        # vLLM refuses these.
        ("critic", [{"type": "x"}]),
    ],
)
def test_blocks_that_vllm_reads_are_unchanged(role: str, blocks: Any) -> None:
    assert convert(blocks, role) == blocks
    assert convert("text", role) == "text"


def test_a_failed_tool_has_a_result() -> None:
    contents: list[Any] = [None, "", []]
    for content in contents:
        assert convert([tool_result(content, is_error=True)])[0]["content"] == "Error"
        assert convert([tool_result(content, is_error=False)])[0]["content"] == content
    assert convert([tool_result("no such file", is_error=True)])[0]["content"] == "no such file"


def test_the_system_prompt_is_text() -> None:
    body: dict[str, Any] = {"system": [text("a"), SEARCH_RESULT]}
    prepare(body)
    assert [block["type"] for block in body["system"]] == ["text", "text"]
    for wrong in (IMAGE, {"type": "thinking", "thinking": "a"}):
        with pytest.raises(InvalidInput) as caught:
            prepare({"system": [text("a"), wrong]})
        assert caught.value.param == "system.1.type"


@pytest.mark.parametrize(
    ("role", "block", "place", "message"),
    [
        ("user", 5, "", "valid dictionary"),
        ("user", {}, ".type", "one of text, image, tool_result, search_result, document"),
        ("user", {"type": ["text"]}, ".type", "one of text"),
        ("user", {"type": "text", "content": "a"}, ".text", "valid string"),
        ("user", {"type": "thinking", "thinking": "a"}, ".type", "one of text"),
        ("user", {"type": "tool_use", "name": "f"}, ".type", "one of text"),
        ("user", {"type": "container_upload", "file_id": "a"}, ".type", "one of text"),
        ("assistant", {"type": "web_search_tool_result", "content": []}, ".type", "one of text"),
        ("system", IMAGE, ".type", "one of text, tool_addition"),
        ("user", tool_result([tool_result("a")]), ".content.0.type", "one of text, image, sea"),
        ("user", tool_result([text("a"), {"type": "browser_state"}]), ".content.1.type", "one of"),
        ("user", tool_result(["a"]), ".content.0", "valid dictionary"),
        ("user", tool_result([{"type": "text"}]), ".content.0.text", "valid string"),
        ("user", document("a"), ".source", "valid dictionary"),
        ("user", document({"type": "text", "data": 5}), ".source.data", "valid string"),
        ("user", document({"type": "base64", "data": "AAAA"}), ".source.type", "no files such as"),
        ("user", document({"type": "url", "url": URL}), ".source.type", "no files such as"),
        ("user", document({"type": "content"}), ".source.content.0", "valid dictionary"),
        (
            "user",
            document({"type": "content", "content": [SEARCH_RESULT, {"type": "x"}]}),
            ".source.content.1.type",
            "one of",
        ),
        ("user", {**SEARCH_RESULT, "content": 5}, ".content", "valid list"),
        ("user", {**SEARCH_RESULT, "content": [{"type": "image"}]}, ".content.0.text", "string"),
        ("user", {"type": "tool_reference"}, ".tool_name", "valid string"),
        ("user", {"type": "image"}, "", "image_url"),
        ("user", {"type": "image_url", "image_url": {}}, ".image_url", "valid string"),
    ],
    ids=str,
)
def test_a_block_without_text_is_refused_by_its_place(
    role: str, block: Any, place: str, message: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        convert([text("a"), block], role)
    assert caught.value.param == f"messages.0.content.1{place}"
    assert caught.value.message.startswith(f"messages.0.content.1{place}: ")
    assert message in caught.value.message


def test_other_values_are_left_to_vllm() -> None:
    for body in (
        {},
        {"messages": 5},
        {"messages": [5, {"content": 5}, {"role": [], "content": []}]},
    ):
        sent: dict[str, Any] = dict(body)
        prepare(sent)
        assert sent == body


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"a": 1}, {"a": 1}),
        ({}, {}),
        ([], {}),
        (None, {}),
        ([1], {"input": [1]}),
        ("Paris", {"input": "Paris"}),
    ],
)
def test_the_input_of_a_call_becomes_an_object(written: Any, expected: dict[str, Any]) -> None:
    # A client that reads a stream parses the text of the model, and sends the value back.
    call = {"type": "tool_use", "id": "t", "name": "f", "input": written}
    assert convert([call], "assistant") == [{**call, "input": expected}]


# Items of a response's input:


def convert_items(items: Any) -> Any:
    body = {"input": items}
    before = copy.deepcopy(body)
    sent = dict(body)
    prepare_responses_input(sent, OpenAIJob(route="/v1/responses", body=body), None)
    assert body == before
    return sent["input"]


def text_part(words: str, kind: str = "output_text") -> dict[str, Any]:
    return {"type": kind, "text": words}


def test_parts_of_an_earlier_response_and_of_a_tool_output_are_joined() -> None:
    parts = [text_part("a"), text_part("b", "input_text"), {"type": "refusal", "refusal": "c"}]
    item = {"type": "message", "role": "assistant", "id": "m", "content": parts}
    output = {
        "type": "function_call_output",
        "call_id": "c",
        "output": [text_part("4"), text_part("2")],
    }
    joined_part = {"type": "output_text", "text": "abc", "annotations": []}
    items = convert_items([item, output])
    assert items == [{**item, "content": [joined_part]}, {**output, "output": "42"}]


def test_all_parts_of_earlier_reasoning_are_joined() -> None:
    """vLLM reads only the first."""
    summary = [text_part("a", "summary_text"), text_part("b", "summary_text")]
    content = [text_part("c", "reasoning_text"), text_part("d", "reasoning_text")]
    item = {"type": "reasoning", "summary": summary, "content": content}
    (sent,) = convert_items([item])
    assert sent["summary"] == [text_part("a\nb", "summary_text")]
    assert sent["content"] == [text_part("c\nd", "reasoning_text")]
    for alone in ({**item, "summary": [], "content": None}, {**item, "summary": content}):
        (sent,) = convert_items([alone])
        assert sent["summary"] == alone["summary"]


def test_the_arguments_of_an_earlier_call_may_be_an_object() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f"}
    for arguments, sent in (({"a": "ü"}, '{"a": "ü"}'), ("{}", "{}"), (5, 5)):
        items = convert_items([{**call, "arguments": arguments}])
        assert items == [{**call, "arguments": sent}]


INPUT_IMAGE = {"type": "input_image", "image_url": "data:,"}


def test_other_inputs_are_passed_to_vllm_unchanged() -> None:
    items = [
        "Hi",
        {"role": "user", "content": [text_part("Hi", "input_text")]},
        {"role": "assistant", "content": "Ho"},
        {"role": "assistant", "content": [text_part("a"), INPUT_IMAGE]},
        {"role": "assistant", "content": [text_part("a"), "b"]},
        {"type": "function_call_output", "output": "42"},
        {"type": "function_call_output", "output": [INPUT_IMAGE]},
        {"type": "reasoning", "output": [text_part("a")]},
    ]
    for sent in ("Hi", items):
        assert convert_items(sent) == sent
