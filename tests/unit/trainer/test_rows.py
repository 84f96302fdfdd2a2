"""Valid files of rows, in each format."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessage

from trainer.rows import ChatRow, Mistakes, PromptRow, parse_row, read_rows
from worker.fine_tunes.spec import RowsFile

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


# Lines without a row.
BLANK = ["", "  ", "\r", "\t"]


@given(st.lists(st.sampled_from([*BLANK, ",", "rows"]), min_size=2))
@pytest.mark.parametrize(
    ("name", "header", "row"),
    [("rows.csv", "prompt,response", "a,b"), ("rows.jsonl", "", JSONL.decode())],
)
def test_blank_lines_are_skipped_and_counted(
    tmp_path_factory: pytest.TempPathFactory, name: str, header: str, row: str, lines: list[str]
) -> None:
    # A line of commas is a blank row of a table.
    blank = {",": "," if header else ""}
    content = ["", header, row, *(row if one == "rows" else blank.get(one, one) for one in lines)]
    rows = [number for number, line in enumerate(content, 1) if line == row]
    path = tmp_path_factory.getbasetemp() / name
    found = read(path, "\n".join(content).encode())
    assert found == [(number, PromptRow("a", "b")) for number in rows]


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


# Keys that a row may have besides those of its form, with their values.
OTHER_KEYS = st.dictionaries(
    st.sampled_from(["id", "split", "source", "model", "metadata", "x"]), st.none() | st.text()
)
NULLS = st.sets(st.sampled_from(["messages", "tools", "prompt", "response", "completion", "input"]))


def with_nulls(value: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {**dict.fromkeys(names), **value}


@given(OTHER_KEYS, NULLS)
def test_other_keys_of_a_row_are_ignored_and_null_counts_as_absent(
    others: dict[str, Any], nulls: set[str]
) -> None:
    for row in ({"prompt": "a", "response": "b"}, {"messages": [USER, ASSISTANT]}):
        assert parse_row(with_nulls({**row, **others}, nulls)) == parse_row(row)


# Keys of messages in OpenAI's and vLLM's answers, with the values that stand for nothing.
EMPTY_KEYS: dict[str, list[Any]] = {
    **{key: [None] for key in ("audio", "function_call", "refusal", "name", "reasoning", "x")},
    **{key: [None] for key in ("reasoning_content", "weight", "tool_call_id")},
    **{key: [None, []] for key in ("annotations", "tool_calls")},
}
empty_keys = st.fixed_dictionaries(
    {}, optional={key: st.sampled_from(values) for key, values in EMPTY_KEYS.items()}
)


@given(empty_keys, empty_keys)
def test_null_counts_as_absent_in_messages(first: dict[str, Any], second: dict[str, Any]) -> None:
    part = {"type": "text", "text": "hi"}
    plain = [{**USER, "content": [part]}, {**ASSISTANT, "tool_calls": [CALL]}]
    dumped: list[Any] = [
        {**first, **USER, "content": [{**part, "annotations": None, "cache_control": None}]},
        {**second, **plain[1]},
    ]
    assert parse_row({"messages": dumped}) == parse_row({"messages": plain})


def test_the_message_of_an_answer_is_trained_on_unchanged() -> None:
    place = {"url": "https://example.com", "title": "a", "start_index": 0, "end_index": 1}
    citation = {"type": "url_citation", "url_citation": place}
    for keys in ({}, {"refusal": "no"}, {"annotations": [citation], "reasoning": None}):
        answer = ChatCompletionMessage.model_validate({**ASSISTANT, **keys}).model_dump()
        assert answer.keys() > ASSISTANT.keys()
        assert parse_row({"messages": [USER, answer]}) == parse_row({"messages": [USER, ASSISTANT]})


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"reasoning": "a"}, "a"),
        ({"reasoning_content": "a"}, "a"),
        ({"reasoning": None, "reasoning_content": "a"}, "a"),
        ({"reasoning": "a", "reasoning_content": "b"}, "a"),
    ],
)
def test_reasoning_has_two_names(keys: dict[str, Any], text: str) -> None:
    row = parse_row({"messages": [USER, {**ASSISTANT, **keys}]})
    assert isinstance(row, ChatRow)
    assert row.messages[1] == {**ASSISTANT, "reasoning": text, "reasoning_content": text}


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
