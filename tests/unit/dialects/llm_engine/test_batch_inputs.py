"""The input of LLM Engine's batches, in the request and in files."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from worker.batches.lines import BatchLimits
from worker.dialects.llm_engine import batch_inputs as inputs
from worker.dialects.llm_engine.batch_inputs import BatchCompletionsRequest
from worker.errors import InvalidInput

SHARED: dict[str, Any] = {"max_new_tokens": 3, "temperature": 0}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi\nthere"}]}
LIMITS = BatchLimits(max_lines=4, max_line_bytes=400)
# Limits for lines of any length.
FEW_VALUES = BatchLimits(max_lines=4, max_line_bytes=10**9, max_line_values=1_000)


def make_request(content: Any) -> BatchCompletionsRequest:
    source = {"input_data_path": "in.json"} if content is None else {"content": content}
    return BatchCompletionsRequest.from_body(
        {"model_config": {"model": "demo"}, "output_data_path": "o", **source}
    )


def write_input(directory: Path, content: Any) -> Path:
    path = directory / "in.json"
    is_encoded = isinstance(content, bytes)
    path.write_bytes(content if is_encoded else json.dumps(content, indent=2).encode())
    return path


def read_v1(content: Any, path: Path | None = None, limits: BatchLimits = LIMITS) -> list[str]:
    """Return the prompts of the file, or those of the request if there is no path."""
    _, lines = inputs.convert_v1(make_request(None if path else content), path, limits)
    return [json.loads(line)["body"]["prompt"] for line in lines]


def read_v2(
    content: Any, path: Path | None = None, limits: BatchLimits = LIMITS
) -> tuple[str, list[Any]]:
    """Return the route and the bodies of the file, or those of the request if there is no path."""
    url, lines = inputs.convert_v2(make_request(None if path else content), path, limits)
    return url, [json.loads(line)["body"] for line in lines]


READ = {"v1": read_v1, "v2": read_v2}


def test_inputs_are_read_from_requests_and_files(tmp_path: Path) -> None:
    prompts = ["a", "b", "", "é\n"]
    for content in ({"prompts": prompts, **SHARED}, {**SHARED, "prompts": prompts}):
        assert read_v1(content) == read_v1(content, write_input(tmp_path, content)) == prompts
    expected = ("/v1/chat/completions", [{**CHAT, "model": "demo"}] * 3)
    assert read_v2([CHAT] * 3) == read_v2(None, write_input(tmp_path, [CHAT] * 3)) == expected
    with_mark = b"\xef\xbb\xbf" + json.dumps([CHAT] * 3).encode()
    assert read_v2(None, write_input(tmp_path, with_mark)) == expected


PROMPTS = {**SHARED, "prompts": ["a"]}
INVALID: dict[str, list[Any]] = {
    "v1": [
        *([], "a", ["a"], SHARED, {"prompts": ["a"]}, {**PROMPTS, "temperatur": 0}),
        *({**SHARED, "prompts": prompts} for prompts in ([], "a", [3], ["a"] * 5)),
    ],
    "v2": [[], "a", PROMPTS, ["a"], [{}], [CHAT, {"prompt": "a"}], [CHAT] * 5],
}


@pytest.mark.parametrize(
    ("version", "content"),
    [(name, content) for name in INVALID for content in INVALID[name]],
    ids=str,
)
def test_invalid_input_is_refused_in_requests_and_in_files(
    tmp_path: Path, version: str, content: Any
) -> None:
    for path in (None, write_input(tmp_path, content)):
        with pytest.raises(InvalidInput) as caught:
            READ[version](content, path)
        if (content, path) == (PROMPTS, None):
            assert "/v1/llm/batch-completions" in caught.value.message


@pytest.mark.parametrize(
    "broken",
    [
        *(b"", b"[", b"{", b'["\xff"]', b"[]x", b"[NaN]", b"[1e]", b"[{},]", b"[{} {}]"),
        *(b"[{}", b"[{}]]", b"[" + b"9" * 5_000 + b"]", b"[1e999]"),
    ],
    ids=lambda text: text.decode(errors="replace")[-9:],
)
def test_a_file_that_is_no_json_is_refused_without_its_path(tmp_path: Path, broken: bytes) -> None:
    path = write_input(tmp_path, broken.replace(b"{}", json.dumps(CHAT).encode()))
    for read in (read_v1, read_v2):
        with pytest.raises(
            InvalidInput, match=r"^input_data_path: it is not valid JSON: "
        ) as caught:
            read(None, path)
        assert str(tmp_path) not in caught.value.message


def test_a_missing_file_is_refused_with_its_key(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "in.json"):
        with pytest.raises(InvalidInput, match=r"^input_data_path: there is no such file$"):
            read_v2(None, path)


def test_a_compressed_file_is_refused_by_its_format(tmp_path: Path) -> None:
    path = write_input(tmp_path, gzip.compress(b"[]"))
    for read in (read_v1, read_v2):
        with pytest.raises(InvalidInput, match=r"^input_data_path: .* is compressed \(gzip\)$"):
            read(None, path)


@pytest.mark.parametrize("length", [300, 500])
def test_an_item_too_long_for_a_line_is_refused_with_its_index(tmp_path: Path, length: int) -> None:
    long = {"messages": [{"role": "user", "content": "x" * length}]}
    for path in (None, write_input(tmp_path, [CHAT, long])):
        with pytest.raises(InvalidInput, match=r"^content\.1: more than 400 bytes"):
            read_v2([CHAT, long], path)
    with pytest.raises(InvalidInput, match=r"content\.prompts\.1: more than 400 bytes"):
        read_v1({**SHARED, "prompts": ["a", "x" * length]})


# A caller's file must not exhaust the worker's memory: 18 MB of empty lists took 400 MiB.
EMPTY_LISTS = b'{"prompts": ["a"], "stop_sequences": [%b' % (b"[]," * 100_000)
NO_TEXT = r"content\.prompts\.1: a prompt is a text"


@pytest.mark.parametrize(
    ("version", "content", "limits", "message"),
    [
        ("v1", b'{"prompts": ["a"], "prompts": ["b"]}', LIMITS, "'prompts' occurs twice"),
        ("v1", EMPTY_LISTS, LIMITS, "a value in it has more than 400 bytes"),
        ("v1", EMPTY_LISTS, FEW_VALUES, "more than 1,000 values that are no numbers"),
        *(
            ("v1", b'{"prompts": ["a", ' + item * 10_000, LIMITS, NO_TEXT)
            for item in (b"[[],", b"[")
        ),
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
def test_reading_a_file_stops_at_the_first_exceeded_limit(
    tmp_path: Path, version: str, content: bytes, limits: BatchLimits, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        READ[version](None, write_input(tmp_path, content), limits)


def test_token_ids_do_not_count_as_values(tmp_path: Path) -> None:
    path = write_input(tmp_path, [{"prompt": [1] * 10_000}])
    url, bodies = read_v2(
        None, path, BatchLimits(max_lines=4, max_line_bytes=10**6, max_line_values=10)
    )
    assert (url, len(bodies)) == ("/v1/completions", 1)
