"""Objects made of printed lines: what is in them, and where one line ends."""

import json
from datetime import datetime
from typing import Any

import pytest

from worker.logs.reader import LONGEST, Lines, as_object

PREFIX = "(EngineCore pid=7) ERROR 11-22 10:00:00 [core.py:1] "


def printed(*parts: bytes) -> list[dict[str, Any]]:
    """Return the objects of what is printed in parts, at the end of all that can print."""
    lines = Lines()
    objects = [line for part in parts for line in lines.feed(part)]
    return [json.loads(line) for line in [*objects, *lines.rest()]]


def messages(*parts: bytes) -> list[str]:
    return [line["message"] for line in printed(*parts)]


def test_a_line_of_text_is_the_message_of_an_object_with_time_and_level() -> None:
    (line,) = printed(b"--- Starting Serverless Worker\n")
    assert datetime.fromisoformat(line.pop("time")).tzinfo is not None
    assert line == {"level": "INFO", "message": "--- Starting Serverless Worker"}


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("WARNING 11-22 10:00:00 [envs.py:1] text", "WARNING"),
        ("(EngineCore pid=7) ERROR 11-22 10:00:00 [core.py:1] text", "ERROR"),
        ("2026-11-22 10:00:00,123 WARNING worker.store: text", "WARNING"),
        ("DEBUG  | text", "DEBUG"),
        ("INFO:     Started server process", "INFO"),
        ("[W1122 10:00:00.271615893 utils.cpp:68] Warning: text", "WARNING"),
        ("E1122 10:00:00.982000 7 triton.py:53] text", "ERROR"),
        ("Endpoint W1122", "INFO"),
        ("INFORMATION about an ERROR", "INFO"),
        ("A CRITICAL text", "INFO"),
    ],
)
def test_the_level_is_read_where_a_format_has_it(text: str, level: str) -> None:
    line = json.loads(as_object(text))
    assert (line["level"], line["message"]) == (level, text)


def test_an_object_with_a_message_keeps_its_keys_and_gets_those_that_are_missing() -> None:
    (line,) = printed(b'{"requestId": "j-1", "message": "Finished.", "level": "WARN"}\n')
    assert datetime.fromisoformat(line.pop("time"))
    assert line == {"requestId": "j-1", "message": "Finished.", "level": "WARN"}
    whole = '{"time": "t", "level": "ERROR", "logger": "worker", "message": "m", "job": 1}'
    assert as_object(whole) == whole


@pytest.mark.parametrize(
    "text",
    [
        '{"tokens": []}',
        '{"message": ',
        '{"message": "m", "loss": NaN}',
        '{"message": "m", "loss": 1e999}',
        '{"a":' * 100_000,
        "[1, 2]",
        "1",
    ],
)
def test_other_json_is_text(text: str) -> None:
    assert json.loads(as_object(text))["message"] == text


def test_no_object_has_a_character_that_could_end_a_line() -> None:
    (text,) = Lines().feed("a\x0bb\u2028c\u0085d\n".encode())
    assert text.isascii()
    assert len(text.splitlines()) == 1
    assert json.loads(text)["message"] == "a\x0bb\u2028c\u0085d"


OTHER = PREFIX.replace("7", "8")


@pytest.mark.parametrize(
    ("parts", "lines"),
    [
        pytest.param([b"\x1b[32mINFO\x1b[0m \xff\n"], ["INFO \ufffd"], id="colours, wrong bytes"),
        pytest.param([b"\r 0%|\r50%|###", b"\r100%|###\n"], ["100%|###"], id="a progress bar"),
        pytest.param([b"a\n\n \t\n\x1b[0m\nb\n"], ["a", "b"], id="blank lines"),
        pytest.param(
            [b"a", b"b", b"\xc3", b"\xbc\nlast"], ["ab\u00fc", "last"], id="lines in parts"
        ),
        pytest.param(
            [f"{PREFIX}a\r\n{OTHER}b\r\n{OTHER}c\nd\r\ne\n".encode()],
            [f"{PREFIX}a", f"{OTHER}b\nc", "d", "e"],
            id="another line between a record's",
        ),
    ],
)
def test_lines_are_what_a_terminal_would_show(parts: list[bytes], lines: list[str]) -> None:
    assert messages(*parts) == lines


def test_a_line_without_end_is_cut() -> None:
    parts = [b"x" * 100_000] * 25
    assert [len(text) for text in messages(*parts)] == [LONGEST, LONGEST, LONGEST // 2]


def test_a_record_of_vllm_with_several_lines_is_one_object() -> None:
    record = f"{PREFIX}failed\r\n{PREFIX}Traceback:\r\n{PREFIX}\r\n{PREFIX}ValueError\n".encode()
    (line,) = printed(record[:70], record[70:])
    assert line["level"] == "ERROR"
    assert line["message"] == f"{PREFIX}failed\nTraceback:\n\nValueError"


def test_a_record_without_end_is_cut() -> None:
    line = f"{PREFIX}{'x' * 100_000}\r\n".encode()
    first, second = messages(line * 15)
    assert LONGEST < len(first) < 1.2 * LONGEST
    assert len(second) > 100_000
