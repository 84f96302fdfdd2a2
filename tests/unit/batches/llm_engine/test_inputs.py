"""The input of LLM Engine's batches, in the request and in files."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from worker.batches.lines import Limits
from worker.batches.llm_engine import inputs
from worker.batches.llm_engine.models import BatchRequest
from worker.errors import InvalidInput

SHARED: dict[str, Any] = {"max_new_tokens": 3, "temperature": 0}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi\nthere"}]}
LIMITS = Limits(lines=4, bytes_of_a_line=400)
# Of a line that may have any length.
FEW_VALUES = Limits(lines=4, bytes_of_a_line=10**9, values_of_a_line=1_000)


def asked(content: Any) -> BatchRequest:
    source = {"input_data_path": "in.json"} if content is None else {"content": content}
    return BatchRequest.read({"model_config": {"model": "demo"}, "output_data_path": "o", **source})


def written(directory: Path, content: Any) -> Path:
    place = directory / "in.json"
    is_text = isinstance(content, bytes)
    place.write_bytes(content if is_text else json.dumps(content, indent=2).encode())
    return place


def v1(content: Any, place: Path | None = None, limits: Limits = LIMITS) -> list[str]:
    """Read prompts from the request, or from a file."""
    lines = inputs.v1(asked(None if place else content), place, limits)
    return [json.loads(line)["body"]["prompt"] for line in lines]


def v2(content: Any, place: Path | None = None, limits: Limits = LIMITS) -> tuple[str, list[Any]]:
    """Read bodies, likewise; return their route, too."""
    url, lines = inputs.v2(asked(None if place else content), place, limits)
    return url, [json.loads(line)["body"] for line in lines]


READ = {"v1": v1, "v2": v2}


@pytest.mark.parametrize("prompts", [["a"], ["a", "b", "", "é\n"]])
@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
def test_prompts_are_read_from_requests_and_files(
    tmp_path: Path, prompts: list[str], *, first: bool
) -> None:
    content = {"prompts": prompts, **SHARED} if first else {**SHARED, "prompts": prompts}
    assert v1(content) == prompts
    assert v1(content, written(tmp_path, content)) == prompts


def test_bodies_are_read_from_the_request_and_from_a_file(tmp_path: Path) -> None:
    expected = ("/v1/chat/completions", [{**CHAT, "model": "demo"}] * 3)
    assert v2([CHAT] * 3) == expected
    assert v2([CHAT] * 3, written(tmp_path, [CHAT] * 3)) == expected
    assert (
        v2(None, written(tmp_path, b"\xef\xbb\xbf" + json.dumps([CHAT] * 3).encode())) == expected
    )


PROMPTS = {**SHARED, "prompts": ["a"]}
WRONG: dict[str, list[Any]] = {
    "v1": [
        *([], "a", ["a"], SHARED, {"prompts": ["a"]}, {**PROMPTS, "temperatur": 0}),
        *({**SHARED, "prompts": prompts} for prompts in ([], "a", [3], ["a"] * 5)),
    ],
    "v2": [[], "a", PROMPTS, ["a"], [{}], [CHAT, {"prompt": "a"}], [CHAT] * 5],
}


@pytest.mark.parametrize(
    ("version", "content"), [(name, content) for name in WRONG for content in WRONG[name]], ids=str
)
def test_wrong_input_is_refused_wherever_it_is(tmp_path: Path, version: str, content: Any) -> None:
    for place in (None, written(tmp_path, content)):
        with pytest.raises(InvalidInput):
            READ[version](content, place)


BODY = json.dumps(CHAT).encode()


@pytest.mark.parametrize(
    "broken",
    [
        *(b"", b"[", b"{", b"\xff[]", b'["\xff"]', b"[]x", b"[1]x", b"[NaN]", b"[1e]"),
        *(b"[%b,]" % BODY, b"[%b %b]" % (BODY, BODY), b"[%b" % BODY, b"[%b]]" % BODY),
        b'[%b, {"messages": %b}]' % (BODY, b"9" * 5_000),
        b'[%b, {"messages": [1e999]}]' % BODY,
    ],
    ids=lambda text: text.decode(errors="replace")[-9:],
)
def test_a_file_that_is_no_json_is_refused_without_its_place(tmp_path: Path, broken: bytes) -> None:
    place = written(tmp_path, broken)
    for read in (v1, v2):
        with pytest.raises(InvalidInput) as caught:
            read(None, place)
        assert str(tmp_path) not in caught.value.message


def test_a_file_that_is_not_there_is_refused_by_its_key(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "in.json"):
        with pytest.raises(InvalidInput, match=r"^input_data_path: there is no such file$"):
            v2(None, place)


def test_who_sends_prompts_to_v2_is_told_where_they_go() -> None:
    with pytest.raises(InvalidInput, match="/v1/llm/batch-completions"):
        v2(PROMPTS)


@pytest.mark.parametrize("length", [300, 500])
def test_what_is_too_long_for_a_line_is_refused_by_its_place(tmp_path: Path, length: int) -> None:
    long = {"messages": [{"role": "user", "content": "x" * length}]}
    for place in (None, written(tmp_path, [CHAT, long])):
        with pytest.raises(InvalidInput, match="more than 400 bytes"):
            v2([CHAT, long], place)
    with pytest.raises(InvalidInput, match=r"content\.prompts\.1: more than 400 bytes"):
        v1({**SHARED, "prompts": ["a", "x" * length]})


# One caller's file may not cost the worker its memory: 18 MB of empty lists took 400 MiB.
LISTS_BESIDE = b'{"prompts": ["a"], "stop_sequences": [%b' % (b"[]," * 100_000)
NO_TEXT = r"content\.prompts\.1: a prompt is a text"


@pytest.mark.parametrize(
    ("version", "content", "limits", "message"),
    [
        ("v1", b'{"prompts": ["a"], "prompts": ["b"]}', LIMITS, "'prompts' stands twice"),
        ("v1", LISTS_BESIDE, LIMITS, "a value in it has more than 400 bytes"),
        ("v1", LISTS_BESIDE, FEW_VALUES, "more than 1,000 values that are no numbers"),
        *(
            ("v1", b'{"prompts": ["a", ' + nested * 10_000, LIMITS, NO_TEXT)
            for nested in (b"[[],", b'{"a": [', b"[" * 150)
        ),
        ("v1", b'{"prompts": [' + b'"",' * 100_000, LIMITS, "more than 4 requests"),
        ("v2", b'["' + b"x" * 1_000_000, LIMITS, "a value in it has more than 400 bytes"),
        *(
            (
                "v2",
                b'[{"messages": ' + b"[" * depth + b"]" * depth + b"}]",
                Limits(lines=1, bytes_of_a_line=1_000_000),
                "nested too deeply",
            )
            for depth in (700, 100_000)
        ),
        *(
            ("v2", b'[{"messages": [' + item * 1_600_000, FEW_VALUES, "more than 1,000 values")
            for item in (b"[],", b"{},", b"null,", b'"",', b'{"a":0},')
        ),
        ("v2", b'[{"messages": [' + b"1," * 1_600_000, FEW_VALUES, "than 1,500,000 numbers"),
    ],
    ids=lambda value: repr(value)[:24] if isinstance(value, bytes) else None,
)
def test_what_a_file_has_too_much_of_ends_the_reading(
    tmp_path: Path, version: str, content: bytes, limits: Limits, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        READ[version](None, written(tmp_path, content), limits)


def test_a_value_that_is_too_long_is_not_read_to_its_end(tmp_path: Path) -> None:
    place = written(tmp_path, b'["')
    os.truncate(place, 10**12)
    with pytest.raises(InvalidInput):
        v2(None, place)


def test_token_ids_are_no_values(tmp_path: Path) -> None:
    place = written(tmp_path, [{"prompt": [1] * 10_000}])
    url, bodies = v2(None, place, Limits(lines=4, bytes_of_a_line=10**6, values_of_a_line=10))
    assert (url, len(bodies)) == ("/v1/completions", 1)
