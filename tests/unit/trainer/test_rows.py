"""Valid files of rows, in each format."""

import json
from pathlib import Path
from typing import Any

import pytest

from trainer.rows import Mistakes, read_rows
from trainer.spec import RowsFile
from trainer.values import ChatRow, PromptRow

USER = {"role": "user", "content": "hi"}
ASSISTANT = {"role": "assistant", "content": "ho"}
CSV, JSONL = b"prompt,response\na,b", b'{"prompt": "a", "response": "b"}'
MARK = b"\xef\xbb\xbf"

LinesAndRows = list[tuple[int, PromptRow | ChatRow]]


def read(path: Path, content: bytes) -> LinesAndRows:
    """Return the rows of a file with the lines where they begin."""
    path.write_bytes(content)
    mistakes = Mistakes("training_file")
    found = list(read_rows(RowsFile(path=path), mistakes))
    assert mistakes.listed_mistakes == []
    return [(row.line, row.value) for row in found]


@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n \n"])
@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("rows.csv", b"Prompt , Response\na,b", 2),
        ("rows.csv", b"input,output\na,b", 2),
        ("rows.csv", b"id,completion,note,prompt\n1,b,,a", 2),
        ("rows.jsonl", JSONL, 1),
        # Without a known extension, or with a wrong one, the content determines the format.
        *((name, content, 2) for name in ("file-abc", "rows.csv") for content in (CSV, MARK + CSV)),
        *(("file-abc", content, 1) for content in (JSONL, MARK + JSONL)),
    ],
)
def test_a_file_of_each_format_is_read(
    tmp_path: Path, name: str, content: bytes, line: int, end: bytes
) -> None:
    assert read(tmp_path / name, content + end) == [(line, PromptRow("a", "b"))]


def test_a_row_of_csv_has_the_number_of_its_first_line(tmp_path: Path) -> None:
    content = b'prompt,response\r\n"a\r\n\r\nb","c ""d"""\r\ne,f\r\n'
    expected = [(2, PromptRow("a\r\n\r\nb", 'c "d"')), (5, PromptRow("e", "f"))]
    assert read(tmp_path / "rows.csv", content) == expected


def test_the_text_of_a_row_stays_unchanged(tmp_path: Path) -> None:
    texts = [" größe ", "日本\u2028語", "👩‍👩‍👧", "a\tb", "\ufffd"]
    expected = [PromptRow(text, text) for text in texts]
    objects = "\n".join(json.dumps({"input": text, "output": text}) for text in texts)
    table = "input,output\n" + "".join(f'"{text}","{text}"\n' for text in texts)
    for name, content in (("rows.jsonl", objects), ("rows.csv", table)):
        assert [value for _, value in read(tmp_path / name, content.encode())] == expected


PARTS = [{"type": "text", "text": text} for text in "ab"]
SYSTEM = {"role": "system", "content": "be"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
# As vLLM passes it to templates.
PARSED_CALL = {**CALL, "function": {"name": "f", "arguments": {"x": 1}}}
DEVELOPER, NAMED_USER = {"role": "developer", "content": "use f"}, {**USER, "name": "ada"}
RESULT = {"role": "tool", "content": "", "tool_call_id": "1"}
REASONING_ANSWER = {**ASSISTANT, "reasoning_content": "so"}


@pytest.mark.parametrize(
    ("messages", "expected", "learned"),
    [
        ([SYSTEM, USER, ASSISTANT], None, (2,)),
        ([{**USER, "content": PARTS}, ASSISTANT], None, (1,)),
        # Answers of weight 0, and answers without a question, are not learned.
        (
            [USER, {**ASSISTANT, "weight": 0}, USER, {**ASSISTANT, "weight": 1}, USER, ASSISTANT],
            [USER, ASSISTANT] * 3,
            (3, 5),
        ),
        ([ASSISTANT, USER, ASSISTANT], None, (2,)),
        (
            [
                *(
                    DEVELOPER,
                    NAMED_USER,
                    {**ASSISTANT, "content": None, "tool_calls": [CALL]},
                    RESULT,
                ),
                {**REASONING_ANSWER, "tool_calls": [], "refusal": None},
            ],
            [
                *(
                    DEVELOPER,
                    NAMED_USER,
                    {**ASSISTANT, "content": "", "tool_calls": [PARSED_CALL]},
                    RESULT,
                ),
                {**REASONING_ANSWER, "reasoning": "so"},
            ],
            (2, 4),
        ),
    ],
    ids=["plain", "parts", "weights", "answer without a question", "calls"],
)
def test_messages_become_a_conversation(
    tmp_path: Path,
    messages: list[dict[str, Any]],
    expected: list[dict[str, Any]] | None,
    learned: tuple[int, ...],
) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    row = {"messages": messages, "tools": tools, "parallel_tool_calls": False}
    found = read(tmp_path / "rows.jsonl", json.dumps(row).encode())
    assert found == [(1, ChatRow(expected or messages, tools, learned))]
    del row["tools"]
    [(_, value)] = read(tmp_path / "rows.jsonl", json.dumps(row).encode())
    assert value == ChatRow(expected or messages, None, learned)
