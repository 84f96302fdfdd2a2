"""Files of rows that are right, in each of their shapes."""

import json
from pathlib import Path
from typing import Any

import pytest

from worker.trainer.lines import Found
from worker.trainer.mistakes import Mistakes
from worker.trainer.rows import rows
from worker.trainer.spec import Data
from worker.trainer.values import Chat, Prompt

BOM = b"\xef\xbb\xbf"
USER = {"role": "user", "content": "hi"}
ASSISTANT = {"role": "assistant", "content": "ho"}


def _read(path: Path, text: str | bytes) -> list[Found]:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    mistakes = Mistakes("training_file")
    found = list(rows(Data(path=path), mistakes))
    assert mistakes.first == []
    return found


def _read_row(path: Path, row: dict[str, Any]) -> Prompt | Chat:
    [found] = _read(path, json.dumps(row))
    return found.value


@pytest.mark.parametrize(
    "header", ["prompt,response", "input,output", "prompt,completion", "Prompt , Response"]
)
def test_csv_names_its_columns(tmp_path: Path, header: str) -> None:
    [found] = _read(tmp_path / "rows.csv", f"{header}\na,b\n")
    assert (found.line, found.value) == (2, Prompt("a", "b"))


def test_csv_may_have_other_columns_in_any_order(tmp_path: Path) -> None:
    [found] = _read(tmp_path / "rows.csv", "id,response,note,prompt\n1,b,,a\n")
    assert found.value == Prompt("a", "b")


def test_a_row_of_csv_has_the_line_where_it_begins(tmp_path: Path) -> None:
    text = 'prompt,response\r\n"a\r\n\r\nb","c ""d"""\r\ne,f\r\n'
    found = _read(tmp_path / "rows.csv", text)
    assert [(row.line, row.value) for row in found] == [
        (2, Prompt("a\r\n\r\nb", 'c "d"')),
        (5, Prompt("e", "f")),
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [("rows.csv", "prompt,response\na,b\n"), ("rows.jsonl", '{"prompt": "a", "response": "b"}\n')],
)
def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path, name: str, text: str) -> None:
    [found] = _read(tmp_path / name, BOM + text.encode())
    assert found.value == Prompt("a", "b")


def test_the_text_of_a_row_is_kept_as_it_is(tmp_path: Path) -> None:
    texts = [" größe ", "日本\u2028語", "👩‍👩‍👧", "a\tb", "\ufffd"]
    for text in texts:
        assert _read_row(tmp_path / "rows.jsonl", {"input": text, "output": text}) == Prompt(
            text, text
        )
    lines = "".join(f'"{text}","{text}"\n' for text in texts)
    found = _read(tmp_path / "rows.csv", f"input,output\n{lines}")
    assert [row.value for row in found] == [Prompt(text, text) for text in texts]


@pytest.mark.parametrize("end", ["", "\n", "\n\n \n"])
@pytest.mark.parametrize(
    ("name", "text"),
    [("rows.csv", "prompt,response\na,b"), ("rows.jsonl", '{"prompt": "a", "response": "b"}')],
)
def test_a_file_may_end_in_blank_lines(tmp_path: Path, name: str, text: str, end: str) -> None:
    assert [row.value for row in _read(tmp_path / name, text + end)] == [Prompt("a", "b")]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("prompt,response\na,b\n", Prompt("a", "b")),
        ('\n{"prompt": "a", "response": "b"}'.lstrip(), Prompt("a", "b")),
    ],
)
def test_a_file_without_a_known_ending_is_read_as_it_begins(
    tmp_path: Path, text: str, value: Prompt
) -> None:
    assert [row.value for row in _read(tmp_path / "file-abc", text)] == [value]


def test_messages_are_a_conversation(tmp_path: Path) -> None:
    row = {"messages": [{"role": "system", "content": "be"}, USER, ASSISTANT]}
    assert _read_row(tmp_path / "rows.jsonl", row) == Chat(row["messages"], None, (2,))


def test_answers_of_weight_0_are_not_learned(tmp_path: Path) -> None:
    weights: list[dict[str, Any]] = [{"weight": 0}, {"weight": 1}, {}]
    messages = [message for weight in weights for message in (USER, {**ASSISTANT, **weight})]
    value = _read_row(tmp_path / "rows.jsonl", {"messages": messages})
    assert value == Chat([USER, ASSISTANT] * 3, None, (3, 5))


def test_an_answer_to_nothing_is_not_learned(tmp_path: Path) -> None:
    messages = [ASSISTANT, USER, ASSISTANT]
    value = _read_row(tmp_path / "rows.jsonl", {"messages": messages})
    assert value == Chat(messages, None, (2,))


def test_contents_may_be_lists_of_texts(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": parts}, ASSISTANT]
    value = _read_row(tmp_path / "rows.jsonl", {"messages": messages})
    assert isinstance(value, Chat)
    assert value.messages[0]["content"] == parts


def test_calls_of_tools_are_given_to_templates_as_vllm_gives_them(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages: list[dict[str, Any]] = [
        {"role": "developer", "content": "use f"},
        {**USER, "name": "ada"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "", "tool_call_id": "1"},
        {**ASSISTANT, "reasoning_content": "so", "tool_calls": [], "refusal": None},
    ]
    tools = [{"type": "function", "function": {"name": "f"}}]
    row = {"messages": messages, "tools": tools, "parallel_tool_calls": False}
    value = _read_row(tmp_path / "rows.jsonl", row)
    parsed = {**call, "function": {"name": "f", "arguments": {"x": 1}}}
    assert value == Chat(
        [
            messages[0],
            messages[1],
            {"role": "assistant", "content": "", "tool_calls": [parsed]},
            messages[3],
            {**ASSISTANT, "reasoning": "so", "reasoning_content": "so"},
        ],
        tools,
        (2, 4),
    )
