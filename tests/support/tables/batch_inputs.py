"""Inputs of batches: those that are refused, with the mistake and its line, and odd ones."""

import json
from typing import Any, NamedTuple

from support.batches import as_text, line, lines

# Of the worker that reads them.
MOST_LINES = 5
LONGEST_LINE = 200_000
ENVIRON = {
    "BATCH_MAX_REQUESTS": str(MOST_LINES),
    "MAX_INPUT_MB": str(LONGEST_LINE / 1_000_000),
}

BOM = b"\xef\xbb\xbf"
GOOD, TWO = as_text(lines(1)), as_text(lines(2))
URL = "/v1/chat/completions"


def long(name: str, size: int) -> bytes:
    """Return a line of so many bytes, its line feed not counted."""
    empty = as_text([line(name, messages=[{"role": "user", "content": ""}])])
    content = "a" * (size + 1 - len(empty))
    return as_text([line(name, messages=[{"role": "user", "content": content}])])


def with_custom_id(text: str) -> bytes:
    """Return a line that has this JSON as its custom_id."""
    return as_text([line("NAME")]).replace(b'"NAME"', text.encode(errors="surrogatepass"), 1)


def with_body(text: str) -> bytes:
    return as_text([line("NAME", body=0)]).replace(b'{"body": 0}', text.encode())


def but(**changes: Any) -> bytes:
    """Return a line with other values of its keys; None leaves one out."""
    changed = {**line("c"), **changes}
    return as_text([{key: value for key, value in changed.items() if value is not None}])


class Wrong(NamedTuple):
    """An input that is refused: its first mistake's code, line and key, and of the message."""

    content: bytes
    code: str
    number: int | None
    param: str | None = None
    says: str = ""


NO_ID, TWICE = ("invalid_custom_id", "duplicate_custom_id")
TOO_LONG = ("line_too_large", 2, None, "MAX_INPUT_MB")

WRONG = {
    "no lines": Wrong(b"", "empty_file", None, says="no lines"),
    "only blank lines": Wrong(b"\n \r\n\t\n   ", "empty_file", None),
    "only a byte order mark": Wrong(BOM, "empty_file", None),
    **{
        name: Wrong(content, "invalid_json_line", number, says=says)
        for name, content, number, says in (
            ("text", GOOD + b"Hello\n", 2, "no JSON"),
            ("half an object", GOOD + GOOD[:-5] + b"\n", 2, ""),
            ("half an object at the end", GOOD + GOOD[:-5], 2, ""),
            ("two objects in a line", GOOD[:-1] + GOOD, 1, ""),
            ("an object over two lines", b'{"custom_id":\n"a"}\n', 1, ""),
            ("an array", GOOD + b"[1]\n", 2, "no JSON object"),
            ("an array of lines", json.dumps(lines(2)).encode(), 1, "object"),
            ("a number", b"5\n", 1, "object"),
            ("null", b"null\n", 1, "object"),
            ("CR only", TWO.replace(b"\n", b"\r"), 1, ""),
            ("UTF-16 with its mark", GOOD.decode().encode("utf-16"), 1, ""),
            ("Latin-1", GOOD + with_custom_id('"\udcfc"')[:-1] + b"\n", 2, ""),
            ("Latin-1 in a body", GOOD.replace(b"c0", b"\xfc"), 1, ""),
            ("a NUL byte", GOOD.replace(b"c0", b"c\x000"), 1, ""),
            ("half a surrogate pair", with_custom_id(r'"\ud800"'), 1, ""),
            ("the second half of one", with_body(r'{"messages": "\udc00"}'), 1, ""),
            ("a surrogate as bytes", with_custom_id('"\ud800"'), 1, ""),
            ("100,000 brackets", GOOD + with_body("[" * 100_000), 2, ""),
            ("99,000 brackets, closed", with_body("[" * 99_000 + "]" * 99_000), 1, ""),
            ("a number beyond all", with_body('{"seed": 1e999}'), 1, ""),
            ("a number of 5,000 digits", with_body('{"seed": %s}' % ("1" * 5_000)), 1, ""),
            ("NaN", GOOD + with_body('{"temperature": NaN}'), 2, ""),
            ("a mark in the middle", GOOD + BOM + GOOD, 2, ""),
            ("two marks", BOM + BOM + GOOD, 1, ""),
        )
    },
    "no custom_id": Wrong(GOOD + but(custom_id=None), NO_ID, 2, "custom_id"),
    "custom_id null": Wrong(with_custom_id("null"), NO_ID, 1, "custom_id"),
    "custom_id a number": Wrong(but(custom_id=1), NO_ID, 1, "custom_id"),
    "custom_id empty": Wrong(but(custom_id=""), NO_ID, 1, "custom_id"),
    "custom_id too long": Wrong(but(custom_id="x" * 513), NO_ID, 1, "custom_id", "1 to 512"),
    "custom_id twice": Wrong(GOOD + b"\n" + TWO, TWICE, 3, "custom_id", "line 1"),
    "custom_id twice, written otherwise": Wrong(
        GOOD + with_custom_id(r'"\u0063\u0030"'), TWICE, 2, "custom_id", "line 1"
    ),
    "another url": Wrong(GOOD + but(url="/v1/completions"), "invalid_url", 2, "url", URL),
    "a whole url": Wrong(but(url=f"https://a{URL}"), "invalid_url", 1, "url"),
    "a url without /v1": Wrong(but(url="/chat/completions"), "invalid_url", 1, "url"),
    "no url": Wrong(but(url=None), "invalid_url", 1, "url"),
    "url a list": Wrong(but(url=[URL]), "invalid_url", 1, "url"),
    "GET": Wrong(GOOD + but(method="GET"), "invalid_method", 2, "method", "POST"),
    "post": Wrong(but(method="post"), "invalid_method", 1, "method"),
    "no method": Wrong(but(method=None), "invalid_method", 1, "method"),
    "stream": Wrong(GOOD + but(body={"stream": True}), "invalid_body", 2, "body", "stream"),
    "stream as a text": Wrong(but(body={"stream": "true"}), "invalid_body", 1, "body"),
    "no body": Wrong(but(body=None), "invalid_body", 1, "body"),
    "body null": Wrong(with_body("null"), "invalid_body", 1, "body"),
    "body a list": Wrong(GOOD + but(body=[1]), "invalid_body", 2, "body"),
    "a line too many": Wrong(
        as_text(lines(MOST_LINES + 1)), "too_many_requests", None, says="BATCH_MAX_REQUESTS"
    ),
    "a line too long": Wrong(
        GOOD + long("x", LONGEST_LINE + 1) + GOOD.replace(b"c0", b"y"), *TOO_LONG
    ),
    "a last line too long": Wrong(GOOD + long("x", LONGEST_LINE + 1)[:-1], *TOO_LONG),
    "a line far too long": Wrong(GOOD + long("x", 7 * LONGEST_LINE), *TOO_LONG),
    "a last line far too long": Wrong(GOOD + long("x", 5 * LONGEST_LINE)[:-1], *TOO_LONG),
    "a line of too many blanks": Wrong(GOOD + b" " * (2 * LONGEST_LINE) + b"\n", *TOO_LONG),
}

# Inputs that are accepted, with the lines c0, c1, ...
ODD = {
    "a byte order mark": BOM + TWO,
    "a mark on a blank line": BOM + b"\n" + TWO,
    "CRLF": TWO.replace(b"\n", b"\r\n"),
    "CRLF, no last one": TWO.replace(b"\n", b"\r\n")[:-2],
    "no last line feed": TWO[:-1],
    "blank lines": b"\n\r\n" + TWO.replace(b"\n", b"\n\n \t\n"),
    "blanks around": b"  " + TWO.replace(b"\n", b"\t \n   "),
    "as many lines as may be, and blank ones": as_text(lines(MOST_LINES)) + b"\n\n",
    "a line as long as may be": long("c0", LONGEST_LINE) + TWO[len(GOOD) :],
    "the same with CRLF": long("c0", LONGEST_LINE)[:-1] + b"\r\n",
    "the same without an end": long("c0", LONGEST_LINE)[:-1],
    "keys that nobody knows": but(custom_id="c0", mine={"a": 1}),
    "stream false": but(custom_id="c0", body={"messages": [], "stream": False}),
}
