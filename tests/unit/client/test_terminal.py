"""Text that others have chosen, on the operator's terminal."""

import csv
import io
import json
import sys
import unicodedata

import pytest

from llm_worker_client.terminal import make_printable, print_line, print_message, print_text

# All of them, except that there are only the first and the last ones for private use.
CONTROLS = ["\ue000", "\U0010fffd"] + [
    char
    for char in map(chr, range(sys.maxunicode + 1))
    if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")
]


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("out/\x1b]0;pwned\x07\x1b[2Jx", "out/\\u001b]0;pwned\\u0007\\u001b[2Jx"),
        ("two\nlines\r\tand\x9b31m", "two\\nlines\\r\\tand\\u009b31m"),
        # Text that reads in the other direction, and a tag outside of the first plane.
        ("a\u202egnp.exe\U000e0041", "a\\u202egnp.exe\\udb40\\udc41"),
        ("\x1b[0;36m(EngineCore pid=7)\x1b[0m ready", "(EngineCore pid=7) ready"),
        ("Grüße, 你好\u3000👋, 12\u00a0MB", "Grüße, 你好\u3000👋, 12\u00a0MB"),
    ],
)
def test_a_line_contains_escapes_for_characters_that_control_the_terminal(
    text: str, printed: str
) -> None:
    assert make_printable(text) == printed
    assert make_printable(printed) == printed


def test_no_character_that_controls_the_terminal_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = "".join(CONTROLS).replace("\n", "")
    for function in (print_line, print_text, print_message):
        function(text)
    printed = capsys.readouterr()
    lines = (printed.out + printed.err).splitlines()
    assert not set("".join(lines)) & set(CONTROLS)
    assert len(lines) == 3


def test_json_and_csv_stay_readable_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    # JSON joins halves of surrogate pairs.
    controls = "".join(char for char in CONTROLS if unicodedata.category(char) != "Cs")
    values = [controls, 'a "quoted"\nvalue']
    print_text(json.dumps({"values": values}, indent=2, ensure_ascii=False))
    assert json.loads(capsys.readouterr().out) == {"values": values}
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(["\x1b[2J", values[1]])
    print_text(out.getvalue())
    assert next(csv.reader(io.StringIO(capsys.readouterr().out))) == ["\\u001b[2J", values[1]]


def test_a_message_has_its_line_breaks(capsys: pytest.CaptureFixture[str]) -> None:
    print_message(ValueError("one\ntwo\x07"))
    print_text("three\nfour")
    printed = capsys.readouterr()
    assert (printed.err, printed.out) == ("one\ntwo\\u0007\n", "three\nfour\n")
