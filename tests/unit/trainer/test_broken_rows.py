"""Files of rows that are refused: each mistake with its line, and without the row's text."""

import json
from pathlib import Path
from typing import Any

import pytest

from worker.trainer import rows as reading
from worker.trainer.mistakes import Mistakes
from worker.trainer.spec import Data

GOOD = '{"prompt": "a", "response": "b"}\n'
HEADER = "prompt,response\n"
USER = {"role": "user", "content": "SECRET"}
ASSISTANT = {"role": "assistant", "content": "SECRET"}
LONG = "SECRET" * 200_000

Told = list[tuple[int | None, str]]


def _mistakes(path: Path, text: str | bytes) -> Told:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    mistakes = Mistakes("training_file")
    list(reading.rows(Data(path=path), mistakes))
    told = [(mistake.line, mistake.message) for mistake in mistakes.first]
    assert not [message for _, message in told if "SECRET" in message]
    return told


CSV: dict[str, tuple[str | bytes, Told]] = {
    "empty": ("", [(None, "no rows")]),
    "only blank lines": ("\n\n", [(1, "name the columns")]),
    "only a header": (HEADER, [(None, "no rows")]),
    "no header": ("SECRET,b\nc,d\n", [(1, "prompt and response, input and output")]),
    "half a pair": ("prompt,answer\na,b\n", [(1, "name the columns")]),
    "several pairs": ("prompt,response,completion\na,b,c\n", [(1, "several answers")]),
    "a column twice": ("prompt,response,Prompt\na,b,c\n", [(1, "a column twice")]),
    "semicolons": ("prompt;response\na;b\n", [(1, "separated by commas")]),
    "tabs": ("prompt\tresponse\na\tb\n", [(1, "separated by commas")]),
    "a field too few": (HEADER + "a,b\nSECRET\n", [(3, "1 field, and the header 2")]),
    "a field too many": (HEADER + "a,b,SECRET\n", [(2, "3 fields, and the header 2")]),
    "an empty prompt": (HEADER + ",b\nc,d\n", [(2, "prompt is empty")]),
    "a blank answer": (HEADER + "a,b\nc,  \n", [(3, "response is empty")]),
    "an empty row": (HEADER + "a,b\n\nc,d\n", [(3, "the line is empty")]),
    "commas only": (HEADER + "a,b\n,\nc,d\n", [(3, "the line is empty")]),
    "an open quote": (HEADER + 'a,b\n"SECRET,d\n', [(3, "never closed")]),
    "a quote in a quote": (HEADER + '"SEC"RET",b\nc,d\n', [(2, "doubled")]),
    "a carriage return": (HEADER + "a,b\rc,d\n", [(2, "carriage return")]),
    "latin-1": (HEADER.encode() + b"a,b\nSECRET,gr\xfc\xdfe\n", [(3, "not UTF-8")]),
    "latin-1 in quotes": (
        HEADER.encode() + b'a,b\n"SECRET\n\xfc\n",c\nd,\n',
        [(4, "not UTF-8"), (6, "response is empty")],
    ),
    "latin-1 in the header": (b"prompt,response\xfc\na,b\n", [(1, "not UTF-8")]),
    "UTF-16": ((HEADER + "a,b\n").encode("utf-16"), [(None, "UTF-16")]),
    "NUL": (HEADER + "a,b\0\nc,d\n", [(2, "NUL")]),
    "a long line": (HEADER + f"a,b\n{LONG},d\n", [(3, "1,048,576 bytes")]),
    "a long row": (
        HEADER + 'a,b\n"' + "SECRET\n" * 200_000,
        [(3, "quotation mark may be missing")],
    ),
    "many": (
        HEADER + "a,\n,b\nc,d\ne\n",
        [(2, "response is empty"), (3, "prompt is empty"), (5, "1 field")],
    ),
}


def _chat(*messages: Any, **keys: Any) -> str:
    return GOOD_CHAT + json.dumps({"messages": list(messages), **keys}) + "\n"


GOOD_CHAT = json.dumps({"messages": [{"role": "user", "content": "a"}, ASSISTANT]}) + "\n"
CALL = {"function": {"name": "f", "arguments": "{}"}}

JSONL: dict[str, tuple[str | bytes, Told]] = {
    "empty": ("", [(None, "no rows")]),
    "no JSON": (GOOD + '{"prompt": SECRET}\n', [(2, "no JSON")]),
    "half a line": (GOOD + '{"prompt": "SECRET', [(2, "no JSON")]),
    "two objects": (GOOD + GOOD.strip() + GOOD, [(2, "no JSON")]),
    "NaN": (GOOD + '{"prompt": NaN}\n', [(2, "NaN is no JSON")]),
    "deep": (GOOD + "[" * 200_000 + "\n", [(2, "no JSON")]),
    "a large number": (GOOD + "9" * 10_000 + "\n", [(2, "no JSON")]),
    "a list": ('[{"prompt": "a", "response": "b"}]', [(1, "one row a line")]),
    "a text": (GOOD + '"SECRET"\n', [(2, "is a text")]),
    "a blank line": (GOOD + "\n \n" + GOOD, [(2, "empty"), (3, "empty")]),
    "no known keys": (GOOD + '{"text": "SECRET"}\n', [(2, "neither messages nor")]),
    "a key too many": (
        GOOD + '{"prompt": "a", "response": "SECRET", "x": 1}\n',
        [(2, "the key 'x' is not known; known are prompt, response")],
    ),
    "two answers": (
        '{"prompt": "a", "response": "b", "completion": "c"}\n',
        [(1, "several answers")],
    ),
    "a number as answer": (GOOD + '{"prompt": "a", "response": 5}\n', [(2, "is a number")]),
    "null as prompt": (GOOD + '{"prompt": null, "response": "b"}\n', [(2, "is null")]),
    "an empty answer": (GOOD + '{"prompt": "a", "response": ""}\n', [(2, "response is empty")]),
    "a key twice": (
        GOOD + '{"prompt": "a", "prompt": "b", "response": "c"}\n',
        [(2, "'prompt' stands twice")],
    ),
    "half a surrogate pair": (
        GOOD + '{"prompt": "\\ud83d", "response": "b"}\n',
        [(2, "surrogate")],
    ),
    "latin-1": (GOOD.encode() + b'{"prompt": "\xfc", "response": "b"}\n', [(2, "not UTF-8")]),
    "NUL": (GOOD + '{"prompt": "\0", "response": "b"}\n', [(2, "NUL")]),
    "a long line": (GOOD + LONG + "\n" + GOOD + "5\n", [(2, "bytes"), (4, "is a number")]),
    "messages among prompts": (GOOD + GOOD_CHAT, [(2, "began otherwise")]),
    "prompts among messages": (GOOD_CHAT + GOOD, [(2, "began otherwise")]),
    "no messages": (_chat(), [(2, "no list with messages")]),
    "257 messages": (
        _chat(*[USER] * 256, ASSISTANT),
        [(2, "the row has 257 messages, and at most 256 are taken")],
    ),
    "a megabyte of answers": (
        _chat(USER, *[{"role": "assistant", "content": "a"}] * 20_000),
        [(2, "the row has 20,001 messages, and at most 256 are taken")],
    ),
    "messages as a text": (GOOD_CHAT + '{"messages": "SECRET"}', [(2, "no list with messages")]),
    "a message that is a text": (_chat("SECRET"), [(2, "messages[0]: it is a text")]),
    "an unknown key": (_chat(USER, ASSISTANT, model="x"), [(2, "the key 'model'")]),
    "an unknown key of a message": (
        _chat({**USER, "weights": 1}, ASSISTANT),
        [(2, "messages[0]: the key 'weights'")],
    ),
    "an unknown role": (_chat(USER, {"role": "SECRET"}), [(2, "messages[1]: role has to be")]),
    "a role that is a list": (_chat({"role": []}, ASSISTANT), [(2, "messages[0]: role")]),
    "no content": (_chat({"role": "user"}, ASSISTANT), [(2, "messages[0]: content is missing")]),
    "an image": (
        _chat({"role": "user", "content": [{"type": "image_url"}]}, ASSISTANT),
        [(2, "messages[0]: content has to be a text, or")],
    ),
    "a number in a part": (
        _chat({"role": "user", "content": [{"type": "text", "text": 1}]}, ASSISTANT),
        [(2, "messages[0]: text is a number")],
    ),
    "an object as content": (_chat({"role": "user", "content": {}}), [(2, "is an object")]),
    "an answer without content": (
        _chat(USER, {"role": "assistant", "content": " "}),
        [(2, "messages[1]: the assistant's message has neither")],
    ),
    "a last word of the user": (_chat(ASSISTANT, USER), [(2, "not the assistant's")]),
    "weight 2": (_chat(USER, {**ASSISTANT, "weight": 2}), [(2, "weight has to be 0 or 1")]),
    "weight true": (_chat(USER, {**ASSISTANT, "weight": True}), [(2, "weight has to be")]),
    "a weight of a list": (_chat(USER, {**ASSISTANT, "weight": []}), [(2, "weight has to be")]),
    "a user's weight": (_chat({**USER, "weight": 1}, ASSISTANT), [(2, "weight is for")]),
    "only weight 0": (_chat(USER, {**ASSISTANT, "weight": 0}), [(2, "nothing can be learned")]),
    "only a first answer": (_chat(ASSISTANT), [(2, "nothing can be learned")]),
    "a name that is a number": (_chat({**USER, "name": 1}, ASSISTANT), [(2, "name is a number")]),
    "tools as an object": (_chat(USER, ASSISTANT, tools={}), [(2, "tools has to be a list")]),
    "a tool without name": (_chat(USER, ASSISTANT, tools=[{}]), [(2, "tools has to be a list")]),
    "calls as an object": (
        _chat(USER, {"role": "assistant", "tool_calls": {"a": 1}}),
        [(2, "tool_calls is an object")],
    ),
    "a call without name": (
        _chat(USER, {"role": "assistant", "tool_calls": [{"function": {}}]}),
        [(2, "needs a function with a name")],
    ),
    "arguments that are no object": (
        _chat(
            USER,
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]},
        ),
        [(2, "arguments have to be a JSON object")],
    ),
    "a user's call": (_chat({**USER, "tool_calls": [CALL]}, ASSISTANT), [(2, "tool_calls is for")]),
}


def _same(told: Told, expected: Told) -> bool:
    return len(told) == len(expected) and all(
        line == at and part in message
        for (line, message), (at, part) in zip(told, expected, strict=True)
    )


@pytest.mark.parametrize("kind", CSV)
def test_a_broken_csv_is_refused_with_its_lines(tmp_path: Path, kind: str) -> None:
    text, expected = CSV[kind]
    told = _mistakes(tmp_path / "rows.csv", text)
    assert _same(told, expected), told


@pytest.mark.parametrize("kind", JSONL)
def test_a_broken_jsonl_is_refused_with_its_lines(tmp_path: Path, kind: str) -> None:
    text, expected = JSONL[kind]
    told = _mistakes(tmp_path / "rows.jsonl", text)
    assert _same(told, expected), told


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone.csv"):
        mistakes = Mistakes("validation_file")
        assert list(reading.rows(Data(path=path), mistakes)) == []
        [mistake] = mistakes.first
        assert (mistake.file, mistake.line) == ("validation_file", None)


def test_rows_beyond_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_ROWS", 3)
    assert _mistakes(tmp_path / "rows.jsonl", GOOD * 3) == []
    assert _mistakes(tmp_path / "rows.jsonl", GOOD * 9) == [(4, "the file has more than 3 rows")]


def test_a_hundred_mistakes_are_listed_and_the_others_counted(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(HEADER + "a,\n" * 250)
    mistakes = Mistakes("training_file")
    list(reading.rows(Data(path=path), mistakes))
    assert [mistake.line for mistake in mistakes.first] == list(range(2, 102))
    assert mistakes.count == 250
