"""Media in bodies, keys that callers must not send, and public addresses."""

import copy
import json
from typing import Any

import pytest

from worker.errors import InvalidInput
from worker.media import walker
from worker.media.fetcher import MAX_URL_LENGTH, UnusableURL, is_public_address, parse_web_url
from worker.media.walker import (
    DENIED_KEYS,
    DENIED_PART_KEYS,
    OPTION_OBJECT_KEYS,
    refuse_denied_keys,
    replace_values,
)
from worker.routes.vllm import ROUTES

CHAT, ANTHROPIC = "/v1/chat/completions", "/v1/messages"
EMBEDDINGS, RESPONSES = "/v1/embeddings", "/v1/responses"
URL = "https://example.com/a.png"
IMAGE = {"type": "image_url", "image_url": {"url": URL}}
INPUT_IMAGE = {"type": "input_image", "image_url": URL}
SOURCE = {"type": "image", "source": {"type": "url", "url": URL}}
ENCODED = {"type": "image", "source": {"type": "base64", "data": URL}}
AUDIO = {"type": "input_audio", "input_audio": {"data": URL, "format": "wav"}}


def find_media(body: dict[str, Any], route: str) -> list[walker.Medium]:
    return walker.find_media(body, next(row.shape.text_keys for row in ROUTES if row.path == route))


def chat(*parts: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": [{"type": "text", "text": "a"}, *parts]}]}


TURN = chat(IMAGE)["messages"]

# A route, the place of the only medium in a body, and the body.
BODIES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (CHAT, "messages.0.content.1.image_url.url", chat(IMAGE)),
    (CHAT, "messages.0.content.1.image_url.url", chat(IMAGE, role="tool")),
    (CHAT, "messages.0.content.1.image_url", chat({"image_url": URL})),
    (CHAT, "messages.0.content.1.image_url", chat({"type": "text", "image_url": URL})),
    (CHAT, "messages.0.content.1.video_url.url", chat({"video_url": {"url": URL}})),
    (CHAT, "messages.0.content.1.audio_url.url", chat({"audio_url": {"url": URL}})),
    (CHAT, "messages.0.content.1.input_audio.data", chat(AUDIO)),
    (CHAT, "messages.0.content.1.image_url", chat(INPUT_IMAGE)),
    (CHAT, "messages.0.content.1.image", chat({"type": "image", "image": URL})),
    (CHAT, "messages.0.content.1.url", chat({"type": "video", "url": URL})),
    (CHAT, "messages.0.content.1.source.data", chat(ENCODED)),
    ("/tokenize", "messages.0.content.1.image_url.url", chat(IMAGE)),
    ("/pooling", "messages.0.content.1.image_url.url", chat(IMAGE)),
    (EMBEDDINGS, "input.0.content.1.image_url.url", {"input": TURN}),
    (EMBEDDINGS, "messages.1.0.content.1.image_url.url", {"messages": [chat()["messages"], TURN]}),
    (EMBEDDINGS, "input.0.0.content.1.image_url.url", {"input": [TURN]}),
    (RESPONSES, "input.0.content.0.image_url", {"input": [{"content": [INPUT_IMAGE]}]}),
    (RESPONSES, "input.0.output.0.image_url", {"input": [{"output": [INPUT_IMAGE]}]}),
    (ANTHROPIC, "messages.0.content.1.source.url", chat(SOURCE)),
    (f"{ANTHROPIC}/count_tokens", "messages.0.content.1.source.data", chat(ENCODED)),
    (
        ANTHROPIC,
        "messages.0.content.1.content.0.source.url",
        chat({"type": "tool_result", "content": [SOURCE]}),
    ),
    (ANTHROPIC, "system.0.source.url", {"system": [SOURCE]}),
    *(
        ("/score", f"{key}.content.0.image_url.url", {key: {"content": [IMAGE]}})
        for key in ("queries", "data_1", "data_2", "text_1", "text_2", "items")
    ),
    ("/score", "documents.1.content.0.image_url.url", {"documents": ["a", {"content": [IMAGE]}]}),
    ("/rerank", "query.content.0.image_url.url", {"query": {"content": [IMAGE]}}),
)
every_body = pytest.mark.parametrize(
    ("route", "place", "body"), BODIES, ids=[place for _, place, _ in BODIES]
)


@every_body
def test_a_medium_is_found_where_vllm_reads_it(route: str, place: str, body: Any) -> None:
    before = copy.deepcopy(body)
    (medium,) = find_media(body, route)
    assert (medium.dotted_path, medium.value) == (place, URL)
    after = replace_values(body, {medium.path: "data:,"})
    assert json.dumps(after) == json.dumps(before).replace(URL, "data:,")
    assert body == before


@every_body
def test_a_refused_key_is_found_in_every_part(route: str, place: str, body: dict[str, Any]) -> None:
    (medium,) = find_media(body, route)
    changed_body = copy.deepcopy(body)
    end = max(i for i, key in enumerate(medium.path) if isinstance(key, int))
    holder: Any = changed_body
    for key in medium.path[: end + 1]:
        holder = holder[key]
    holder["uuid"] = "invoice-1"
    with pytest.raises(InvalidInput) as caught:
        find_media(changed_body, route)
    assert caught.value.param == ".".join(map(str, [*medium.path[: end + 1], "uuid"]))
    assert "invoice-1" not in caught.value.message


def test_every_refused_key_and_type_of_a_part_is_found() -> None:
    for name in DENIED_PART_KEYS:
        for part, place in (({**IMAGE, name: "a"}, name), ({"type": name}, "type")):
            with pytest.raises(InvalidInput) as caught:
                find_media(chat(part), CHAT)
            assert caught.value.param == f"messages.0.content.1.{place}"
        # Some clients send null for a missing value.
        assert find_media(chat({**IMAGE, name: None}), CHAT)


def test_a_refused_key_is_found_in_every_object_whose_values_vllm_merges() -> None:
    for name in DENIED_KEYS:
        holders = OPTION_OBJECT_KEYS
        bodies: list[Any] = [{name: {"a": 1}}, *({holder: {name: "x"}} for holder in holders)]
        for body in bodies:
            with pytest.raises(InvalidInput, match=f"{name}: not allowed in a request") as caught:
                refuse_denied_keys(body)
            assert caught.value.param == name
        # An empty value is the default.
        refuse_denied_keys({name: {}})


PNG = {"data": "AA", "media_type": "image/png;base64,"}
WITHOUT_CONTENT: dict[str, tuple[str, list[Any]]] = {
    "image_url": ("image_url", [None, {}, {"url": None}, {"url": 5}, 5, [URL]]),
    "input_audio": ("input_audio", [{}, {"data": None}, {"data": "AA", "format": "wav;x,"}]),
    "image": ("source", ["a", {"file_id": "a"}, {"type": "url"}, PNG]),
    "video": ("video", [[URL], "", None]),
}


@pytest.mark.parametrize(
    "part",
    [
        *({"type": name} for name in (*WITHOUT_CONTENT, "input_image", "video_url", "audio_url")),
        *(
            {"type": name, key: value}
            for name, (key, values) in WITHOUT_CONTENT.items()
            for value in values
        ),
    ],
    ids=repr,
)
def test_a_medium_without_content_is_refused(part: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"^messages\.0\.content\.1\.\w+"):
        find_media(chat(part), CHAT)


SCHEMA = {"type": "object", "properties": {name: {"type": "string"} for name in DENIED_PART_KEYS}}
CALL = {"type": "function", "function": {"name": "f", "arguments": json.dumps({"uuid": "1"})}}


def test_refused_keys_outside_of_media_parts_are_accepted() -> None:
    bodies: list[dict[str, Any]] = [
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
    ]
    for body in bodies:
        refuse_denied_keys(body)
        assert not find_media(body, CHAT), body


def test_the_tables_have_every_key_that_callers_must_not_send() -> None:
    """The tests above iterate over the tables and would not notice a removed row."""
    denied_keys = {"mm_processor_kwargs", "media_io_kwargs", "use_audio_in_video"}
    denied_keys |= {f"{kind}_embeds" for kind in ("prompt", "image", "audio", "video")}
    denied_keys |= {"kv_transfer_params", "ec_transfer_params"}
    assert denied_keys <= DENIED_KEYS.keys()
    assert denied_keys | {"uuid", "image_pil"} <= DENIED_PART_KEYS.keys()
    assert {"chat_template_kwargs", "vllm_xargs", "extra_body", "extra_args"} <= set(
        OPTION_OBJECT_KEYS
    )


# Addresses:

PUBLIC = """
    1.1.1.1 8.8.8.8 93.184.216.34 2606:4700:4700::1111 2a00:1450:4001::200e
    ::ffff:8.8.8.8 64:ff9b::8.8.8.8
"""
NOT_PUBLIC = """
    127.0.0.1 127.255.255.254 0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 100.100.100.200 169.254.169.254
    172.16.0.1 192.0.0.1 192.0.0.192 192.0.2.1 192.88.99.1 192.168.0.1 198.18.0.1 198.51.100.1
    203.0.113.1 224.0.0.1 239.255.255.250 240.0.0.1 255.255.255.255 168.63.129.16
    :: ::1 ::127.0.0.1 ::8.8.8.8 ::ffff:127.0.0.1 ::ffff:7f00:1 ::ffff:10.0.0.1 ::ffff:0:127.0.0.1
    64:ff9b::127.0.0.1 64:ff9b::a9fe:a9fe 64:ff9b:1::1 100::1 2001::1 2001:db8::1 2001:20::1
    2002:7f00:1:: 2002:808:808::1 3fff::1 5f00::1 fc00::1 fd00:ec2::254 fe80::1 fe80::1%eth0
    2606:4700::1%1 fec0::1 ff02::1 localhost 1.1.1 0x7f.0.0.1 0177.0.0.1 2130706433
"""
# URLs that parsers read in different ways; test_ssrf tests the addresses that they would reach.
AMBIGUOUS = """
    ftp://example.com/a file:///etc/passwd //example.com/a example.com/a http:example.com
    http:/example.com http:// https:///a http://user@example.com/ http://user:hunter2@example.com/
    http://:hunter2@example.com/ http://@example.com/ http://example.com:0/ http://example.com:22/
    http://example.com:25/ http://example.com:1023/ http://example.com:99999/ http://example.com:x/
    http://example/ http://exa%2emple.com/ http://example.com%00.org/ http://-example.com/
    http://example..com/ http://.example.com/ http://example.com\\@example.org/
    http://example.com/\\example.org/a http://exam\x00ple.com/ http://127.1/ http://1.1.1.0x1/
    http://[::1%25lo]/ http://[::1 http://[v1.a]/
"""


def test_only_addresses_of_the_internet_are_public() -> None:
    assert [address for address in PUBLIC.split() if not is_public_address(address)] == []
    others = [*NOT_PUBLIC.split(), "", " 1.1.1.1", "1.1.1.1\n"]
    assert [address for address in others if is_public_address(address)] == []


@pytest.mark.parametrize(
    ("text", "host", "target"),
    [
        ("https://example.com", "example.com", "/"),
        ("HTTP://EXAMPLE.com./A%2fb?a=%2B%2F&x=%20#b", "EXAMPLE.com.", "/A%2fb?a=%2B%2F&x=%20"),
        ("http://example.com:8080/a.png", "example.com", "/a.png"),
        ("https://bücher.de/ä", "xn--bcher-kva.de", "/%C3%A4"),
        ("https://1.1.1.1/a", "1.1.1.1", "/a"),
        ("https://[2606:4700:4700::1111]/a", "2606:4700:4700::1111", "/a"),
        ("https://my_bucket.s3.amazonaws.com/a", "my_bucket.s3.amazonaws.com", "/a"),
    ],
)
def test_a_url_is_sent_unchanged(text: str, host: str, target: str) -> None:
    url = parse_web_url(text)
    assert (url.raw_host, url.raw_path_qs) == (host, target)


def test_an_ambiguous_url_is_refused() -> None:
    with_whitespace = ["http://exa mple.com/", "\thttp://example.com/", "ht\ntp://example.com/"]
    for text in (
        *AMBIGUOUS.split(),
        *with_whitespace,
        "https://example.com/" + "a" * MAX_URL_LENGTH,
    ):
        with pytest.raises(UnusableURL) as caught:
            parse_web_url(text)
        assert not any(word in str(caught.value) for word in ("example", "hunter2"))
