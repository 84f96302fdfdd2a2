"""Where media are found in bodies, and which keys are refused where."""

import copy
import json
from typing import Any

import pytest

from worker.errors import InvalidInput
from worker.media.walker import DENIED, DENIED_IN_PARTS, HOLDERS, find, refuse, replaced

CHAT = "/v1/chat/completions"
URL = "https://example.com/a.png"
IMAGE = {"type": "image_url", "image_url": {"url": URL}}


def chat(*parts: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": [{"type": "text", "text": "a"}, *parts]}]}


# A body, its route, and the place of the only medium in it.
BODIES: tuple[tuple[str, dict[str, Any], str], ...] = (
    (CHAT, chat(IMAGE), "messages.0.content.1.image_url.url"),
    (CHAT, chat(IMAGE, role="tool"), "messages.0.content.1.image_url.url"),
    (CHAT, chat({"image_url": URL}), "messages.0.content.1.image_url"),
    (CHAT, chat({"type": "text", "text": "a", "image_url": URL}), "messages.0.content.1.image_url"),
    (
        CHAT,
        chat({"type": "video_url", "video_url": {"url": URL}}),
        "messages.0.content.1.video_url.url",
    ),
    (
        CHAT,
        chat({"type": "audio_url", "audio_url": {"url": URL}}),
        "messages.0.content.1.audio_url.url",
    ),
    (
        CHAT,
        chat({"type": "input_audio", "input_audio": {"data": URL, "format": "wav"}}),
        "messages.0.content.1.input_audio.data",
    ),
    (CHAT, chat({"type": "input_image", "image_url": URL}), "messages.0.content.1.image_url"),
    ("/tokenize", chat(IMAGE), "messages.0.content.1.image_url.url"),
    ("/pooling", chat(IMAGE), "messages.0.content.1.image_url.url"),
    ("/v1/embeddings", {"input": chat(IMAGE)["messages"]}, "input.0.content.1.image_url.url"),
    (
        "/v1/embeddings",
        {"messages": [chat()["messages"], chat(IMAGE)["messages"]]},
        "messages.1.0.content.1.image_url.url",
    ),
    (
        "/v1/embeddings",
        {"input": [chat(IMAGE)["messages"]]},
        "input.0.0.content.1.image_url.url",
    ),
    (
        "/v1/responses",
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": URL}]}]},
        "input.0.content.0.image_url",
    ),
    (
        "/v1/responses",
        {
            "input": [
                {
                    "type": "function_call_output",
                    "output": [{"type": "input_image", "image_url": URL}],
                }
            ]
        },
        "input.0.output.0.image_url",
    ),
    (
        "/v1/messages",
        chat({"type": "image", "source": {"type": "url", "url": URL}}),
        "messages.0.content.1.source.url",
    ),
    (
        "/v1/messages/count_tokens",
        chat({"type": "image", "source": {"type": "base64", "data": URL}}),
        "messages.0.content.1.source.data",
    ),
    (
        "/v1/messages",
        chat(
            {
                "type": "tool_result",
                "content": [{"type": "image", "source": {"type": "url", "url": URL}}],
            }
        ),
        "messages.0.content.1.content.0.source.url",
    ),
    (
        "/v1/messages",
        {"system": [{"type": "image", "source": {"type": "url", "url": URL}}]},
        "system.0.source.url",
    ),
    *(
        ("/score", {key: {"content": [IMAGE]}}, f"{key}.content.0.image_url.url")
        for key in ("queries", "data_1", "data_2", "text_1", "text_2", "items")
    ),
    ("/score", {"documents": ["a", {"content": [IMAGE]}]}, "documents.1.content.0.image_url.url"),
    ("/rerank", {"query": {"content": [IMAGE]}}, "query.content.0.image_url.url"),
)


@pytest.mark.parametrize(("route", "body", "place"), BODIES, ids=[row[2] for row in BODIES])
def test_a_medium_is_found_where_vllm_reads_it_and_can_be_replaced(
    route: str, body: dict[str, Any], place: str
) -> None:
    before = copy.deepcopy(body)
    (medium,) = find(body, route)
    assert (medium.name, medium.value) == (place, URL)
    after = replaced(body, {medium.path: "data:,"})
    assert json.dumps(after) == json.dumps(before).replace(URL, "data:,")
    assert body == before


def _part_holding(route: str, body: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """Return the body with further keys in the part that holds its medium."""
    changed = copy.deepcopy(body)
    (medium,) = find(body, route)
    part: Any = changed
    keys = list(medium.path)
    end = next(i for i in range(len(keys) - 1, -1, -1) if isinstance(keys[i], int))
    for key in keys[: end + 1]:
        part = part[key]
    part.update(extra)
    return changed


@pytest.mark.parametrize(("route", "body", "place"), BODIES, ids=[row[2] for row in BODIES])
@pytest.mark.parametrize("name", sorted(DENIED_IN_PARTS))
def test_a_refused_key_is_found_in_every_part(
    route: str, body: dict[str, Any], place: str, name: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        find(_part_holding(route, body, {name: "invoice-1"}), route)
    error = caught.value
    assert error.param is not None
    assert error.param.endswith(f".{name}")
    assert place.startswith(error.param.removesuffix(name))
    assert "invoice-1" not in error.message
    # A null is what some clients send for nothing.
    assert find(_part_holding(route, body, {name: None}), route)


@pytest.mark.parametrize("type_", sorted(DENIED_IN_PARTS))
def test_a_part_of_a_refused_type_is_refused(type_: str) -> None:
    with pytest.raises(InvalidInput, match=r"messages\.0\.content\.1\.type"):
        find(chat({"type": type_}), CHAT)


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("name", sorted(DENIED))
def test_a_refused_key_is_found_in_every_object_whose_values_vllm_merges(
    holder: str, name: str
) -> None:
    bodies: list[dict[str, Any]] = [{name: {}}, {holder: {name: "x"}}]
    for body in bodies:
        with pytest.raises(InvalidInput, match=f"{name}: not in a request") as caught:
            refuse(body, CHAT)
        assert caught.value.param == name


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url"},
        {"type": "image_url", "image_url": None},
        {"type": "image_url", "image_url": {}},
        {"type": "image_url", "image_url": {"url": None}},
        {"type": "image_url", "image_url": {"url": 5}},
        {"type": "image_url", "image_url": 5},
        {"type": "image_url", "image_url": [URL]},
        {"type": "input_image", "file_id": "file-1"},
        {"type": "video_url"},
        {"type": "audio_url"},
        {"type": "input_audio"},
        {"type": "input_audio", "input_audio": {}},
        {"type": "input_audio", "input_audio": {"data": None}},
        {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav;x,"}},
        {"type": "input_audio", "input_audio": {"data": "AA", "format": 5}},
        {"type": "image"},
        {"type": "image", "source": "a"},
        {"type": "image", "source": {"type": "file", "file_id": "a"}},
        {"type": "image", "source": {"type": "url"}},
        {"type": "image", "source": {"data": "AA", "media_type": "image/png;base64,"}},
    ],
    ids=repr,
)
def test_a_medium_without_content_is_refused(part: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"^messages\.0\.content\.1\.\w+"):
        find(chat(part), CHAT)


SCHEMA = {"type": "object", "properties": {name: {"type": "string"} for name in DENIED_IN_PARTS}}
CALL = {"type": "function", "function": {"name": "f", "arguments": json.dumps({"uuid": "1"})}}


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [CALL]}]},
        {"messages": [{"role": "user", "content": "a", "uuid": "turn-1", "image_url": URL}]},
        {"messages": [{"role": "user", "content": '{"uuid": 1, "image_url": "a"}'}]},
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": SCHEMA}]}]},
        {"documents": [{"title": "a", "content": [{"uuid": "b", "image_url": URL}]}]},
        {"metadata": {"uuid": "a", "image_url": URL}},
        {"chat_template_kwargs": {"uuid": "a"}},
        {"messages": [{"content": [{"type": "text", "text": "a", "source": "page 5"}]}]},
        {"messages": "Hi", "input": "Hi", "system": "Hi"},
        {"messages": [5, "a", None, {"content": 5}, {"content": ["a", 5, None]}]},
        {"input": [1, 2, 3]},
        {},
    ],
    ids=repr,
)
def test_words_in_what_vllm_does_not_read_as_media_are_the_callers_own(body: Any) -> None:
    refuse(body, CHAT)
    assert not find(body, CHAT)


def test_what_must_never_come_from_a_caller_is_in_the_tables() -> None:
    """The tests above go through the tables, and would miss a row that is gone."""
    everywhere = {"mm_processor_kwargs", "media_io_kwargs", "use_audio_in_video"}
    everywhere |= {f"{kind}_embeds" for kind in ("prompt", "image", "audio", "video")}
    everywhere |= {"kv_transfer_params", "ec_transfer_params"}
    assert everywhere | {"request_id"} <= DENIED.keys()
    assert everywhere | {"uuid", "image_pil"} <= DENIED_IN_PARTS.keys()
    assert {"chat_template_kwargs", "vllm_xargs", "extra_body", "extra_args"} <= set(HOLDERS)
