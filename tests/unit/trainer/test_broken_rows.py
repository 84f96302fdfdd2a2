"""Invalid files of rows: each mistake is reported with its line and without the row's text."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from support.effort import loop_iterations

from trainer import rows as reading
from worker.fine_tunes.spec import RowsFile

HEADER = b"prompt,response\n"
USER = {"role": "user", "content": "SECRET"}
ASSISTANT = {"role": "assistant", "content": "SECRET"}
LONG = b"SECRET" * 200_000

Mistakes = list[tuple[int | None, str]]


def read_mistakes(path: Path, content: bytes) -> Mistakes:
    """Return the mistakes in a file as lines and messages."""
    path.write_bytes(content)
    mistakes = reading.Mistakes("training_file")
    list(reading.read_rows(RowsFile(path=path), mistakes))
    found = [(mistake.line, mistake.message) for mistake in mistakes.listed_mistakes]
    assert not [message for _, message in found if "SECRET" in message]
    return found


CSV: dict[str, tuple[bytes, Mistakes]] = {
    "empty": (b"", [(None, "no rows")]),
    "only blank lines": (b"\n\n", [(None, "no rows")]),
    "only a header": (HEADER, [(None, "no rows")]),
    "no header": (b"SECRET,b\nc,d\n", [(1, "prompt and response, input and output")]),
    "only one known column": (b"prompt,answer\na,b\n", [(1, "name the columns")]),
    "a column twice": (b"prompt,response,Prompt\na,b,c\n", [(1, "a column twice")]),
    "semicolons": (b"prompt;response\na;b\n", [(1, "separated by commas")]),
    "one field too few": (HEADER + b"a,b\nSECRET\n", [(3, "1 field, and the header 2")]),
    "one field too many": (HEADER + b"a,b,SECRET\n", [(2, "3 fields, and the header 2")]),
    "an open quote": (HEADER + b'a,b\n"SECRET,d\n', [(3, "never closed")]),
    "a quote in a quote": (HEADER + b'"SEC"RET",b\nc,d\n', [(2, "doubled")]),
    "a carriage return": (HEADER + b"a,b\rc,d\n", [(2, "carriage return")]),
    "latin-1 in quotes": (
        HEADER + b'a,b\n"SECRET\n\xfc\n",c\nd,\n',
        [(4, "not UTF-8"), (6, "response is empty")],
    ),
    "latin-1 in the header": (b"prompt,response\xfc\na,b\n", [(1, "not UTF-8")]),
    "gzip": (gzip.compress(HEADER + b"a,b\n"), [(None, "compressed (gzip), and has to be CSV")]),
    "zip": (b"PK\x03\x04", [(None, "compressed (zip)")]),
    "UTF-16": (HEADER.decode().encode("utf-16"), [(None, "UTF-16")]),
    "NUL": (HEADER + b"a,b\0\nc,d\n", [(2, "NUL")]),
    "a long line": (HEADER + b"a,b\n%b,d\n" % LONG, [(3, "1,048,576 bytes")]),
    "a long row": (HEADER + b'a,b\n"' + b"SECRET\n" * 200_000, [(3, "mark may be missing")]),
    "many": (
        HEADER + b"a,  \n,b\nc,d\ne\n",
        [(2, "response is empty"), (3, "prompt is empty"), (5, "1 field")],
    ),
}


@pytest.mark.parametrize("kind", CSV)
def test_a_broken_csv_is_refused_with_its_lines(tmp_path: Path, kind: str) -> None:
    content, expected = CSV[kind]
    found = read_mistakes(tmp_path / "rows.csv", content)
    assert [line for line, _ in found] == [line for line, _ in expected]
    assert all(part in text for (_, text), (_, part) in zip(found, expected, strict=True)), found


def chat(*messages: Any, **keys: Any) -> dict[str, Any]:
    return {"messages": list(messages), **keys}


def calls(*found: Any) -> dict[str, Any]:
    """Return a conversation whose answer calls tools."""
    return chat(USER, {"role": "assistant", "tool_calls": list(found)})


# The second line of a file, as bytes or as a value, and a part of the mistake's message.
JSONL: dict[str, tuple[Any, str]] = {
    "not JSON": (b'{"prompt": SECRET}', "not valid JSON"),
    "two objects": (b'{"prompt": "a", "response": "b"} {}', "not valid JSON"),
    "NaN": (b'{"prompt": NaN}', "NaN is not valid JSON"),
    "deep": (b"[" * 200_000, "not valid JSON"),
    "a large number": (b"9" * 10_000, "not valid JSON"),
    "a list": ([{"prompt": "a", "response": "b"}], "one row a line"),
    "a string": ("SECRET", "is a text"),
    "no known keys": ({"text": "SECRET"}, "neither messages nor"),
    "two answers": ({"prompt": "a", "response": "b", "completion": "c"}, "several answers"),
    "a number as answer": ({"prompt": "a", "response": 5}, "response is a number"),
    "null as prompt": ({"prompt": None, "response": "b"}, "neither messages nor"),
    "a prompt and messages": (
        {"prompt": "a", "response": "b", "messages": [USER, ASSISTANT]},
        "messages and prompt and response: use one of them",
    ),
    "a key twice": (b'{"prompt": "a", "prompt": "b", "response": "c"}', "'prompt' occurs twice"),
    "half a surrogate pair": ({"prompt": "\ud83d", "response": "b"}, "surrogate"),
    "latin-1": (b'{"prompt": "\xfc", "response": "b"}', "not UTF-8"),
    "a long line": (LONG, "1,048,576 bytes"),
}
CHATS: dict[str, tuple[dict[str, Any], str]] = {
    "prompts among messages": ({"prompt": "a", "response": "b"}, "differs"),
    "no messages": (chat(), "a list of messages"),
    "257 messages": (
        chat(*[USER] * 256, ASSISTANT),
        "has 257 messages, and at most 256 are accepted",
    ),
    "messages as a string": ({"messages": "SECRET"}, "a list of messages"),
    "a message that is a string": (chat("SECRET"), "messages[0]: it is a text"),
    "functions": (chat(USER, ASSISTANT, functions=[{"name": "f"}]), "tools instead of functions"),
    "an unknown key of a message": (chat({**USER, "x": 1}, ASSISTANT), "messages[0]: the key 'x'"),
    "an unknown role": (chat(USER, {"role": "SECRET"}), "messages[1]: role has to be"),
    "a role that is a list": (chat({"role": []}, ASSISTANT), "messages[0]: role"),
    "no content": (chat({"role": "user"}, ASSISTANT), "messages[0]: content is missing"),
    "an image": (
        chat({**USER, "content": [{"type": "image_url"}]}),
        "content has to be a text, or",
    ),
    "a number in a part": (
        chat({"role": "user", "content": [{"type": "text", "text": 1}]}, ASSISTANT),
        "messages[0]: text is a number",
    ),
    "an object as content": (chat({"role": "user", "content": {}}), "is an object"),
    "an answer without content": (chat(USER, {**ASSISTANT, "content": " "}), "message has neither"),
    "a last message of the user": (chat(ASSISTANT, USER), "not the assistant's"),
    "weight 2": (chat(USER, {**ASSISTANT, "weight": 2}), "weight has to be 0 or 1"),
    "weight true": (chat(USER, {**ASSISTANT, "weight": True}), "weight has to be"),
    "a user's weight": (chat({**USER, "weight": 1}, ASSISTANT), "weight is for"),
    "only weight 0": (chat(USER, {**ASSISTANT, "weight": 0}), "nothing can be learned"),
    "only an answer without a question": (chat(ASSISTANT), "nothing can be learned"),
    "a name that is a number": (chat({**USER, "name": 1}, ASSISTANT), "name is a number"),
    "tools as an object": (chat(USER, ASSISTANT, tools={}), "tools has to be a list"),
    "a tool without name": (chat(USER, ASSISTANT, tools=[{}]), "tools has to be a list"),
    "calls as an object": (chat(USER, {**ASSISTANT, "tool_calls": {"a": 1}}), "is an object"),
    "a call without name": (calls({"function": {}}), "needs a function with a name"),
    "arguments that are not an object": (
        calls({"function": {"name": "f", "arguments": "[1]"}}),
        "arguments have to be a JSON object",
    ),
    "a user's call": (chat({**USER, "tool_calls": [1]}, ASSISTANT), "tool_calls is for"),
    "a call as in former chats": (
        chat(USER, {**ASSISTANT, "function_call": {"name": "f"}}),
        "messages[1]: the key 'function_call' is not known; known are annotations",
    ),
    "another key of a part": (
        chat({**USER, "content": [{"type": "text", "text": "a", "x": 1}]}, ASSISTANT),
        "content has to be a text, or",
    ),
}


@pytest.mark.parametrize("kind", [*JSONL, *CHATS, "messages among prompts"])
def test_a_broken_line_is_refused_and_others_are_read(tmp_path: Path, kind: str) -> None:
    first: dict[str, Any] = {"prompt": "a", "response": "b"}
    row, part = JSONL.get(kind) or CHATS.get(kind) or (chat(USER, ASSISTANT), "differs")
    if kind in CHATS:
        first = chat(USER, ASSISTANT)
    line = row if isinstance(row, bytes) else json.dumps(row).encode()
    before = json.dumps(first).encode()
    found = read_mistakes(tmp_path / "rows.jsonl", b"\n".join([before, line, before, b"5"]))
    (number, message), last = found
    assert (number, part in message) == (2, True), found
    assert last == (4, "the line is a number, and has to be a JSON object")


def test_a_directory_or_a_missing_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone.csv"):
        mistakes = reading.Mistakes("validation_file")
        assert list(reading.read_rows(RowsFile(path=path), mistakes)) == []
        [mistake] = mistakes.listed_mistakes
        assert (mistake.file, mistake.line) == ("validation_file", None)


def test_rows_beyond_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_ROWS", 3)
    assert read_mistakes(tmp_path / "rows.csv", HEADER + b"a,b\n" * 3) == []
    assert read_mistakes(tmp_path / "rows.csv", HEADER + b"a,b\n" * 9) == [
        (5, "the file has more than 3 rows")
    ]


def test_no_more_lines_are_read_after_as_many_mistakes_as_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_ROWS", 3)
    for name, row in (("rows.csv", b"a,b"), ("rows.jsonl", json.dumps(chat(USER, ASSISTANT)))):
        path, line = tmp_path / name, row if isinstance(row, bytes) else row.encode()
        begin = (HEADER if name.endswith("csv") else b"") + line + b"\n"
        assert read_mistakes(path, begin + b"\n" * 3) == []
        (blank,) = read_mistakes(path, begin + b"\n" * 9_000)
        assert blank[1] == "the file has more than 3 blank lines"
        # A line that is read counts, also if it is not listed.
        path.write_bytes(begin + b"5\n" * 9_000)
        mistakes = reading.Mistakes("training_file")
        list(reading.read_rows(RowsFile(path=path), mistakes))
        assert 3 < mistakes.count < 9


# Characters of a row, and the iterations of an empty loop for which it may be read.
ROW_SIZE, MAX_ITERATIONS = 128_000, 20_000_000


def repeat(part: bytes, begin: bytes = b"", end: bytes = b"") -> bytes:
    return begin + part * (ROW_SIZE // len(part)) + end


KEYS = b",".join(b'"%x":0' % number for number in range(ROW_SIZE // 8))
USERS = b'{"messages":[{"role":"user","content":"'
CALLS = b'{"messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":['
# Rows for which a careless reader would need more than twice the time if they were twice as long.
LARGE_ROWS = {
    "distinct keys, and one twice": b'{%b,"x":0,"x":0}' % KEYS,
    "distinct keys in an object in an object": b'{"a":[{%b,"x":0,"x":0}]}' % KEYS,
    "the same key": repeat(b'"x":0,', b"{", b'"x":0}'),
    "unknown keys": b'{"prompt":"a","response":"b",%b}' % KEYS,
    "unknown keys of a message": b'{"messages":[{"role":"user","content":"a",%b}]}' % KEYS,
    "objects with a key twice": repeat(b'{"x":0,"x":0},', b"[", b"0]"),
    "messages": repeat(b'{"role":"user"},', b'{"messages":[', b"0]}"),
    "parts": repeat(b'{"type":"text","text":"a"},', b'{"messages":[{"content":[', b"0]}]}"),
    "tool calls": repeat(b'{"function":{"name":"f"}},', CALLS, b"0]}]}"),
    "tools": repeat(b'{"function":{"name":"f"}},', USERS + b'a"}],"tools":[', b"0]}"),
    "white space": repeat(b" ", b'{"prompt":"', b'","response":"b"}'),
    "escapes": repeat(rb"\u00e9", USERS, b'"}]}'),
    "half pairs": repeat(rb"\ud83d", USERS, b'"}]}'),
    "digits": repeat(b"9" * 4_000 + b",", b"[", b"9]"),
    "lists": repeat(b"[],", b"[", b"0]"),
    "open lists": repeat(b"["),
    "NUL": repeat(b"\0"),
    "latin-1": repeat(b"\xfc"),
}
LARGE_RECORDS = {
    "columns": repeat(b",", b"prompt,response"),
    "quotation marks": repeat(b'""', HEADER + b'"', b'",b'),
    "lines in quotation marks": repeat(b"\n", HEADER + b'"', b'",b'),
    "NUL in quotation marks": repeat(b"\0\n", HEADER + b'"', b'",b'),
    "an open quote": repeat(b"a\n", HEADER + b'"'),
    "carriage returns": repeat(b"\r", HEADER),
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.slow] if number else [])
        for rows in (LARGE_ROWS, LARGE_RECORDS)
        for number, kind in enumerate(rows)
    ],
)
def test_a_large_row_takes_time_in_proportion_to_its_size(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("rows.csv" if kind in LARGE_RECORDS else "rows.jsonl")
    path.write_bytes(LARGE_RECORDS.get(kind) or LARGE_ROWS[kind])

    def read() -> None:
        list(reading.read_rows(RowsFile(path=path), reading.Mistakes("training_file")))

    assert loop_iterations(read) < MAX_ITERATIONS
