"""Files of rows that are right, in each of their shapes."""

import json
from pathlib import Path
from typing import Any

import pytest

from trainer.rows import Mistakes, rows
from trainer.spec import Data
from trainer.values import Chat, Prompt

USER = {"role": "user", "content": "hi"}
ASSISTANT = {"role": "assistant", "content": "ho"}
CSV, JSONL = b"prompt,response\na,b", b'{"prompt": "a", "response": "b"}'
MARK = b"\xef\xbb\xbf"

Read = list[tuple[int, Prompt | Chat]]


def read(path: Path, content: bytes) -> Read:
    """Return the rows of a file, and the lines where they begin."""
    path.write_bytes(content)
    mistakes = Mistakes("training_file")
    found = list(rows(Data(path=path), mistakes))
    assert mistakes.first == []
    return [(row.line, row.value) for row in found]


@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n \n"])
@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("rows.csv", b"Prompt , Response\na,b", 2),
        ("rows.csv", b"input,output\na,b", 2),
        ("rows.csv", b"id,completion,note,prompt\n1,b,,a", 2),
        ("rows.jsonl", JSONL, 1),
        # Without a known ending it is read as it begins.
        *((name, content, 2) for name in ("file-abc", "rows.csv") for content in (CSV, MARK + CSV)),
        *(("file-abc", content, 1) for content in (JSONL, MARK + JSONL)),
    ],
)
def test_a_file_of_each_form_is_read(
    tmp_path: Path, name: str, content: bytes, line: int, end: bytes
) -> None:
    assert read(tmp_path / name, content + end) == [(line, Prompt("a", "b"))]


def test_a_row_of_csv_has_the_line_where_it_begins(tmp_path: Path) -> None:
    content = b'prompt,response\r\n"a\r\n\r\nb","c ""d"""\r\ne,f\r\n'
    expected = [(2, Prompt("a\r\n\r\nb", 'c "d"')), (5, Prompt("e", "f"))]
    assert read(tmp_path / "rows.csv", content) == expected


def test_the_text_of_a_row_is_kept_as_it_is(tmp_path: Path) -> None:
    texts = [" größe ", "日本\u2028語", "👩‍👩‍👧", "a\tb", "\ufffd"]
    expected = [Prompt(text, text) for text in texts]
    objects = "\n".join(json.dumps({"input": text, "output": text}) for text in texts)
    table = "input,output\n" + "".join(f'"{text}","{text}"\n' for text in texts)
    for name, content in (("rows.jsonl", objects), ("rows.csv", table)):
        assert [value for _, value in read(tmp_path / name, content.encode())] == expected


PARTS = [{"type": "text", "text": text} for text in "ab"]
SYSTEM = {"role": "system", "content": "be"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
# As vLLM gives it to templates.
PARSED = {**CALL, "function": {"name": "f", "arguments": {"x": 1}}}
DEVELOPER, NAMED = {"role": "developer", "content": "use f"}, {**USER, "name": "ada"}
RESULT = {"role": "tool", "content": "", "tool_call_id": "1"}
THINKS = {**ASSISTANT, "reasoning_content": "so"}


@pytest.mark.parametrize(
    ("messages", "expected", "learned"),
    [
        ([SYSTEM, USER, ASSISTANT], None, (2,)),
        ([{**USER, "content": PARTS}, ASSISTANT], None, (1,)),
        # Answers of weight 0, and to nothing, are not learned.
        (
            [USER, {**ASSISTANT, "weight": 0}, USER, {**ASSISTANT, "weight": 1}, USER, ASSISTANT],
            [USER, ASSISTANT] * 3,
            (3, 5),
        ),
        ([ASSISTANT, USER, ASSISTANT], None, (2,)),
        (
            [
                *(DEVELOPER, NAMED, {**ASSISTANT, "content": None, "tool_calls": [CALL]}, RESULT),
                {**THINKS, "tool_calls": [], "refusal": None},
            ],
            [
                *(DEVELOPER, NAMED, {**ASSISTANT, "content": "", "tool_calls": [PARSED]}, RESULT),
                {**THINKS, "reasoning": "so"},
            ],
            (2, 4),
        ),
    ],
    ids=["plain", "parts", "weights", "to nothing", "calls"],
)
def test_messages_are_a_conversation(
    tmp_path: Path,
    messages: list[dict[str, Any]],
    expected: list[dict[str, Any]] | None,
    learned: tuple[int, ...],
) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    row = {"messages": messages, "tools": tools, "parallel_tool_calls": False}
    found = read(tmp_path / "rows.jsonl", json.dumps(row).encode())
    assert found == [(1, Chat(expected or messages, tools, learned))]
    del row["tools"]
    [(_, value)] = read(tmp_path / "rows.jsonl", json.dumps(row).encode())
    assert value == Chat(expected or messages, None, learned)
