"""The input of LLM Engine's batches, in the request and in files."""

import json
from pathlib import Path
from typing import Any

import pytest

from worker.batches.lines import Limits
from worker.dialects.llm_engine import batch_inputs as inputs
from worker.dialects.llm_engine.batch_requests import BatchCompletions
from worker.errors import InvalidInput

SHARED: dict[str, Any] = {"max_new_tokens": 3, "temperature": 0}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi\nthere"}]}
LIMITS = Limits(lines=4, bytes_of_a_line=400)
# Of a line that may have any length.
FEW_VALUES = Limits(lines=4, bytes_of_a_line=10**9, values_of_a_line=1_000)


def asked(content: Any) -> BatchCompletions:
    source = {"input_data_path": "in.json"} if content is None else {"content": content}
    return BatchCompletions.of_body(
        {"model_config": {"model": "demo"}, "output_data_path": "o", **source}
    )


def written(directory: Path, content: Any) -> Path:
    place = directory / "in.json"
    is_text = isinstance(content, bytes)
    place.write_bytes(content if is_text else json.dumps(content, indent=2).encode())
    return place


def v1(content: Any, place: Path | None = None, limits: Limits = LIMITS) -> list[str]:
    """Read prompts from the request, or from a file."""
    _, lines = inputs.v1(asked(None if place else content), place, limits)
    return [json.loads(line)["body"]["prompt"] for line in lines]


def v2(content: Any, place: Path | None = None, limits: Limits = LIMITS) -> tuple[str, list[Any]]:
    """Read bodies, likewise; return their route, too."""
    url, lines = inputs.v2(asked(None if place else content), place, limits)
    return url, [json.loads(line)["body"] for line in lines]


READ = {"v1": v1, "v2": v2}


def test_inputs_are_read_from_requests_and_files(tmp_path: Path) -> None:
    prompts = ["a", "b", "", "é\n"]
    for content in ({"prompts": prompts, **SHARED}, {**SHARED, "prompts": prompts}):
        assert v1(content) == v1(content, written(tmp_path, content)) == prompts
    expected = ("/v1/chat/completions", [{**CHAT, "model": "demo"}] * 3)
    assert v2([CHAT] * 3) == v2(None, written(tmp_path, [CHAT] * 3)) == expected
    with_mark = b"\xef\xbb\xbf" + json.dumps([CHAT] * 3).encode()
    assert v2(None, written(tmp_path, with_mark)) == expected


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
        with pytest.raises(InvalidInput) as caught:
            READ[version](content, place)
        if (content, place) == (PROMPTS, None):
            assert "/v1/llm/batch-completions" in caught.value.message


@pytest.mark.parametrize(
    "broken",
    [
        *(b"", b"[", b"{", b'["\xff"]', b"[]x", b"[NaN]", b"[1e]", b"[{},]", b"[{} {}]"),
        *(b"[{}", b"[{}]]", b"[" + b"9" * 5_000 + b"]", b"[1e999]"),
    ],
    ids=lambda text: text.decode(errors="replace")[-9:],
)
def test_a_file_that_is_no_json_is_refused_without_its_place(tmp_path: Path, broken: bytes) -> None:
    place = written(tmp_path, broken.replace(b"{}", json.dumps(CHAT).encode()))
    for read in (v1, v2):
        with pytest.raises(InvalidInput, match=r"^input_data_path: it is no JSON: ") as caught:
            read(None, place)
        assert str(tmp_path) not in caught.value.message


def test_a_file_that_is_not_there_is_refused_by_its_key(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "in.json"):
        with pytest.raises(InvalidInput, match=r"^input_data_path: there is no such file$"):
            v2(None, place)


@pytest.mark.parametrize("length", [300, 500])
def test_what_is_too_long_for_a_line_is_refused_by_its_place(tmp_path: Path, length: int) -> None:
    long = {"messages": [{"role": "user", "content": "x" * length}]}
    for place in (None, written(tmp_path, [CHAT, long])):
        with pytest.raises(InvalidInput, match=r"^content\.1: more than 400 bytes"):
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
        *(("v1", b'{"prompts": ["a", ' + it * 10_000, LIMITS, NO_TEXT) for it in (b"[[],", b"[")),
        ("v1", b'{"prompts": [' + b'"",' * 100_000, LIMITS, "more than 4 requests"),
        ("v2", b'["' + b"x" * 1_000_000, LIMITS, "a value in it has more than 400 bytes"),
        (
            "v2",
            b'[{"messages": ' + b"[" * 700 + b"]" * 700 + b"}]",
            FEW_VALUES,
            "nested too deeply",
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


def test_token_ids_are_no_values(tmp_path: Path) -> None:
    place = written(tmp_path, [{"prompt": [1] * 10_000}])
    url, bodies = v2(None, place, Limits(lines=4, bytes_of_a_line=10**6, values_of_a_line=10))
    assert (url, len(bodies)) == ("/v1/completions", 1)
