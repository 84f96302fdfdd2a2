"""The input of LLM Engine's batches, in the request and in files."""

import json
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


def asked(content: Any = None) -> BatchRequest:
    source = {"input_data_path": "in.json"} if content is None else {"content": content}
    return BatchRequest.read({"model_config": {"model": "demo"}, "output_data_path": "o", **source})


def written(directory: Path, content: Any) -> Path:
    place = directory / "in.json"
    if isinstance(content, bytes):
        place.write_bytes(content)
    else:
        place.write_text(json.dumps(content, indent=2), encoding="utf-8")
    return place


def v1(content: Any, place: Path | None = None) -> list[str]:
    lines = inputs.v1(asked(None if place else content), place, LIMITS)
    return [json.loads(line)["body"]["prompt"] for line in lines]


def v2(content: Any, place: Path | None = None) -> tuple[str, list[Any]]:
    url, lines = inputs.v2(asked(None if place else content), place, LIMITS)
    return url, [json.loads(line)["body"] for line in lines]


@pytest.mark.parametrize("prompts", [["a"], ["a", "b", "", "é\n"]])
@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
def test_prompts_are_read_from_the_request_and_from_a_file(
    tmp_path: Path, prompts: list[str], *, first: bool
) -> None:
    content = {"prompts": prompts, **SHARED} if first else {**SHARED, "prompts": prompts}
    assert v1(content) == prompts
    assert v1(content, written(tmp_path, content)) == prompts


def test_bodies_are_read_from_the_request_and_from_a_file(tmp_path: Path) -> None:
    expected = ("/v1/chat/completions", [{**CHAT, "model": "demo"}] * 3)
    assert v2([CHAT] * 3) == expected
    assert v2([CHAT] * 3, written(tmp_path, [CHAT] * 3)) == expected


def test_a_file_may_begin_with_a_mark_of_the_byte_order(tmp_path: Path) -> None:
    place = written(tmp_path, b"\xef\xbb\xbf" + json.dumps([CHAT]).encode())
    assert len(v2(None, place)[1]) == 1


@pytest.mark.parametrize(
    "content",
    [
        [],
        "a",
        ["a"],
        SHARED,
        {**SHARED, "prompts": []},
        {**SHARED, "prompts": "a"},
        {"prompts": ["a"]},
        {**SHARED, "prompts": ["a"], "temperatur": 0},
        {**SHARED, "prompts": [3]},
        {**SHARED, "prompts": ["a"] * (LIMITS.lines + 1)},
    ],
    ids=str,
)
def test_wrong_input_of_v1_is_refused_wherever_it_stands(tmp_path: Path, content: Any) -> None:
    with pytest.raises(InvalidInput):
        v1(content)
    with pytest.raises(InvalidInput):
        v1(None, written(tmp_path, content))


@pytest.mark.parametrize(
    "content",
    [
        [],
        "a",
        {**SHARED, "prompts": ["a"]},
        ["a"],
        [{}],
        [CHAT, {"prompt": "a"}],
        [CHAT] * (LIMITS.lines + 1),
    ],
    ids=str,
)
def test_wrong_input_of_v2_is_refused_wherever_it_stands(tmp_path: Path, content: Any) -> None:
    with pytest.raises(InvalidInput):
        v2(content)
    with pytest.raises(InvalidInput):
        v2(None, written(tmp_path, content))


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
def test_a_file_that_is_no_json_is_told_by_its_key_and_not_by_its_place(
    tmp_path: Path, broken: bytes
) -> None:
    place = written(tmp_path, broken)
    for read in (v1, v2):
        with pytest.raises(InvalidInput) as caught:
            read(None, place)
        assert str(tmp_path) not in caught.value.message


def test_a_file_that_is_not_there_is_told_by_its_key_and_not_by_its_place(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "in.json"):
        with pytest.raises(InvalidInput, match=r"^input_data_path: there is no such file$"):
            v2(None, place)


def test_a_key_that_stands_twice_in_a_file_is_refused(tmp_path: Path) -> None:
    place = written(tmp_path, b'{"prompts": ["a"], "prompts": ["b"]}')
    with pytest.raises(InvalidInput, match="'prompts' stands twice"):
        v1(None, place)


def test_who_sends_prompts_to_v2_is_told_where_they_go() -> None:
    with pytest.raises(InvalidInput, match="/v1/llm/batch-completions"):
        v2({**SHARED, "prompts": ["a"]})


@pytest.mark.parametrize("length", [300, 500])
def test_what_is_too_long_for_a_line_is_refused_by_its_place(tmp_path: Path, length: int) -> None:
    long = {"messages": [{"role": "user", "content": "x" * length}]}
    for place in (None, written(tmp_path, [CHAT, long])):
        with pytest.raises(InvalidInput, match="more than 400 bytes"):
            v2([CHAT, long], place)
    with pytest.raises(InvalidInput, match=r"content\.prompts\.1: more than 400 bytes"):
        v1({**SHARED, "prompts": ["a", "x" * length]})


@pytest.mark.parametrize("depth", [700, 100_000])
def test_what_is_nested_too_deeply_is_refused(tmp_path: Path, depth: int) -> None:
    nested = b"[" * depth + b"]" * depth
    place = written(tmp_path, b'[{"messages": ' + nested + b"}]")
    deep = Limits(lines=1, bytes_of_a_line=1_000_000)
    with pytest.raises(InvalidInput, match="nested too deeply"):
        list(inputs.v2(asked(), place, deep)[1])


def test_what_stands_beside_the_prompts_counts_as_one_value(tmp_path: Path) -> None:
    """Its parts were read one by one: 18 MB of empty lists took 400 MiB, with a limit of 10 MB."""
    beside = b'{"prompts": ["a"], "stop_sequences": [%b' % (b"[]," * 100_000)
    place = written(tmp_path, beside)
    with pytest.raises(InvalidInput, match="a value in it has more than 400 bytes"):
        v1(None, place)
    roomy = Limits(lines=4, bytes_of_a_line=10**9, values_of_a_line=1_000)
    with pytest.raises(InvalidInput, match="more than 1,000 values that are no numbers"):
        inputs.v1(asked(), place, roomy)


@pytest.mark.parametrize("items", [b"[],", b"{},", b"null,", b'"",', b'{"a":0},', b"1,"])
def test_a_body_of_very_many_values_is_not_read_to_its_end(tmp_path: Path, items: bytes) -> None:
    roomy = Limits(lines=4, bytes_of_a_line=10**9, values_of_a_line=1_000)
    place = written(tmp_path, b'[{"messages": [' + items * 1_600_000)
    with pytest.raises(InvalidInput, match=r"more than 1,(000 values|500,000 numbers)"):
        inputs.v2(asked(), place, roomy)


def test_token_ids_are_no_values(tmp_path: Path) -> None:
    roomy = Limits(lines=4, bytes_of_a_line=10**6, values_of_a_line=10)
    place = written(tmp_path, [{"prompt": [1] * 10_000}])
    url, lines = inputs.v2(asked(), place, roomy)
    assert (url, len(list(lines))) == ("/v1/completions", 1)


@pytest.mark.parametrize("nested", [b"[[],", b'{"a": [', b"[" * 150])
def test_a_prompt_that_is_no_text_ends_the_reading(tmp_path: Path, nested: bytes) -> None:
    place = written(tmp_path, b'{"prompts": ["a", ' + nested * 10_000)
    with pytest.raises(InvalidInput, match=r"content\.prompts\.1: a prompt is a text"):
        v1(None, place)


def test_more_prompts_than_a_batch_has_end_the_reading(tmp_path: Path) -> None:
    place = written(tmp_path, b'{"prompts": [' + b'"",' * 100_000)
    with pytest.raises(InvalidInput, match="more than 4 requests"):
        v1(None, place)


def test_a_value_that_is_too_long_is_not_read_to_its_end(tmp_path: Path) -> None:
    place = tmp_path / "in.json"
    with place.open("wb") as opened:
        opened.write(b'["')
        opened.truncate(10**12)
    with pytest.raises(InvalidInput):
        v2(None, place)
    place.write_text('["' + "x" * 1_000_000)
    with pytest.raises(InvalidInput, match="a value in it has more than 400 bytes"):
        v2(None, place)
