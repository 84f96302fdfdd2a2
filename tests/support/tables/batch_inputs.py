"""Inputs of batches: refused inputs with their first mistake, and unusual accepted inputs."""

import gzip
import json
from typing import Any, NamedTuple

from support.batches import line, lines, to_jsonl

# Limits of the worker that reads the inputs.
MAX_LINES = 5
MAX_LINE_BYTES = 200_000
ENVIRON = {
    "BATCH_MAX_REQUESTS": str(MAX_LINES),
    "MAX_INPUT_MB": str(MAX_LINE_BYTES / 1_000_000),
}

BOM = b"\xef\xbb\xbf"
GOOD, TWO = to_jsonl(lines(1)), to_jsonl(lines(2))
URL = "/v1/chat/completions"


def line_of_size(name: str, size: int) -> bytes:
    """Return a line of ``size`` bytes, not counting its line feed."""
    empty = to_jsonl([line(name, messages=[{"role": "user", "content": ""}])])
    content = "a" * (size + 1 - len(empty))
    return to_jsonl([line(name, messages=[{"role": "user", "content": content}])])


def line_with_custom_id(text: str) -> bytes:
    """Return a line with this JSON as its custom_id."""
    return to_jsonl([line("NAME")]).replace(b'"NAME"', text.encode(errors="surrogatepass"), 1)


def line_with_body(text: str) -> bytes:
    return to_jsonl([line("NAME", body=0)]).replace(b'{"body": 0}', text.encode())


def line_with(**changes: Any) -> bytes:
    """Return a line with other values of its keys; None omits a key."""
    changed = {**line("c"), **changes}
    return to_jsonl([{key: value for key, value in changed.items() if value is not None}])


class WrongInput(NamedTuple):
    """A refused input, and its first mistake: code, line, key and a part of the message."""

    content: bytes
    code: str
    number: int | None
    param: str | None = None
    message_part: str = ""


NO_ID, TWICE = ("invalid_custom_id", "duplicate_custom_id")
TOO_LONG = ("line_too_large", 2, None, "MAX_INPUT_MB")
SURROGATE = "a text in the line contains half of a surrogate pair"

WRONG_INPUTS = {
    "no lines": WrongInput(b"", "empty_file", None, message_part="no lines"),
    "only blank lines": WrongInput(b"\n \r\n\t\n   ", "empty_file", None),
    "only a byte order mark": WrongInput(BOM, "empty_file", None),
    "gzip": WrongInput(gzip.compress(TWO), "compressed_file", None, None, "compressed (gzip)"),
    "zstd": WrongInput(b"\x28\xb5\x2f\xfd", "compressed_file", None, None, "compressed (zstd)"),
    **{
        name: WrongInput(content, "invalid_json_line", number, message_part=says)
        for name, content, number, says in (
            ("text", GOOD + b"Hello\n", 2, "not valid JSON"),
            ("half an object", GOOD + GOOD[:-5] + b"\n", 2, ""),
            ("half an object at the end", GOOD + GOOD[:-5], 2, ""),
            ("two objects in a line", GOOD[:-1] + GOOD, 1, ""),
            ("an object over two lines", b'{"custom_id":\n"a"}\n', 1, ""),
            ("an array", GOOD + b"[1]\n", 2, "not a JSON object"),
            ("an array of lines", json.dumps(lines(2)).encode(), 1, "object"),
            ("a number", b"5\n", 1, "object"),
            ("null", b"null\n", 1, "object"),
            ("CR only", TWO.replace(b"\n", b"\r"), 1, ""),
            ("UTF-16 with its mark", GOOD.decode().encode("utf-16"), 1, ""),
            ("Latin-1", GOOD + line_with_custom_id('"\udcfc"')[:-1] + b"\n", 2, ""),
            ("Latin-1 in a body", GOOD.replace(b"c0", b"\xfc"), 1, ""),
            ("a NUL byte", GOOD.replace(b"c0", b"c\x000"), 1, ""),
            ("half a surrogate pair", line_with_custom_id(r'"\ud800"'), 1, SURROGATE),
            ("the second half of one", line_with_body(r'{"messages": "\udc00"}'), 1, SURROGATE),
            ("half a pair in a broken line", b'{"a": "\\ud800"', 1, "not valid JSON in UTF-8"),
            ("a surrogate as bytes", line_with_custom_id('"\ud800"'), 1, SURROGATE),
            ("100,000 brackets", GOOD + line_with_body("[" * 100_000), 2, ""),
            ("99,000 brackets, closed", line_with_body("[" * 99_000 + "]" * 99_000), 1, ""),
            ("a number beyond all", line_with_body('{"seed": 1e999}'), 1, ""),
            ("a number of 5,000 digits", line_with_body('{"seed": %s}' % ("1" * 5_000)), 1, ""),
            ("NaN", GOOD + line_with_body('{"temperature": NaN}'), 2, ""),
            ("a mark in the middle", GOOD + BOM + GOOD, 2, ""),
            ("two marks", BOM + BOM + GOOD, 1, ""),
        )
    },
    "no custom_id": WrongInput(GOOD + line_with(custom_id=None), NO_ID, 2, "custom_id"),
    "custom_id null": WrongInput(line_with_custom_id("null"), NO_ID, 1, "custom_id"),
    "custom_id a number": WrongInput(line_with(custom_id=1), NO_ID, 1, "custom_id"),
    "custom_id empty": WrongInput(line_with(custom_id=""), NO_ID, 1, "custom_id"),
    "custom_id too long": WrongInput(
        line_with(custom_id="x" * 513), NO_ID, 1, "custom_id", "1 to 512"
    ),
    "custom_id twice": WrongInput(GOOD + b"\n" + TWO, TWICE, 3, "custom_id", "line 1"),
    "custom_id twice, written otherwise": WrongInput(
        GOOD + line_with_custom_id(r'"\u0063\u0030"'), TWICE, 2, "custom_id", "line 1"
    ),
    "another url": WrongInput(
        GOOD + line_with(url="/v1/completions"), "invalid_url", 2, "url", URL
    ),
    "a whole url": WrongInput(line_with(url=f"https://a{URL}"), "invalid_url", 1, "url"),
    "a url without /v1": WrongInput(line_with(url="/chat/completions"), "invalid_url", 1, "url"),
    "no url": WrongInput(line_with(url=None), "invalid_url", 1, "url"),
    "url a list": WrongInput(line_with(url=[URL]), "invalid_url", 1, "url"),
    "GET": WrongInput(GOOD + line_with(method="GET"), "invalid_method", 2, "method", "POST"),
    "post": WrongInput(line_with(method="post"), "invalid_method", 1, "method"),
    "no method": WrongInput(line_with(method=None), "invalid_method", 1, "method"),
    "stream": WrongInput(
        GOOD + line_with(body={"stream": True}), "invalid_body", 2, "body", "stream"
    ),
    "stream as a text": WrongInput(line_with(body={"stream": "true"}), "invalid_body", 1, "body"),
    "no body": WrongInput(line_with(body=None), "invalid_body", 1, "body"),
    "body null": WrongInput(line_with_body("null"), "invalid_body", 1, "body"),
    "body a list": WrongInput(GOOD + line_with(body=[1]), "invalid_body", 2, "body"),
    "a line too many": WrongInput(
        to_jsonl(lines(MAX_LINES + 1)), "too_many_requests", None, message_part="BATCH_MAX_REQUESTS"
    ),
    "a line too long": WrongInput(
        GOOD + line_of_size("x", MAX_LINE_BYTES + 1) + GOOD.replace(b"c0", b"y"), *TOO_LONG
    ),
    "a last line too long": WrongInput(
        GOOD + line_of_size("x", MAX_LINE_BYTES + 1)[:-1], *TOO_LONG
    ),
    "a line far too long": WrongInput(GOOD + line_of_size("x", 7 * MAX_LINE_BYTES), *TOO_LONG),
    "a last line far too long": WrongInput(
        GOOD + line_of_size("x", 5 * MAX_LINE_BYTES)[:-1], *TOO_LONG
    ),
    "a line of too many blanks": WrongInput(GOOD + b" " * (2 * MAX_LINE_BYTES) + b"\n", *TOO_LONG),
}

# Unusual inputs that are accepted, with the lines c0, c1, ...
VALID_INPUTS = {
    "a byte order mark": BOM + TWO,
    "a mark on a blank line": BOM + b"\n" + TWO,
    "CRLF": TWO.replace(b"\n", b"\r\n"),
    "CRLF, no last one": TWO.replace(b"\n", b"\r\n")[:-2],
    "no last line feed": TWO[:-1],
    "blank lines": b"\n\r\n" + TWO.replace(b"\n", b"\n\n \t\n"),
    "blanks around": b"  " + TWO.replace(b"\n", b"\t \n   "),
    "as many lines as may be, and blank ones": to_jsonl(lines(MAX_LINES)) + b"\n\n",
    "a line as long as may be": line_of_size("c0", MAX_LINE_BYTES) + TWO[len(GOOD) :],
    "the same with CRLF": line_of_size("c0", MAX_LINE_BYTES)[:-1] + b"\r\n",
    "the same without an end": line_of_size("c0", MAX_LINE_BYTES)[:-1],
    "keys that nobody knows": line_with(custom_id="c0", mine={"a": 1}),
    "stream false": line_with(custom_id="c0", body={"messages": [], "stream": False}),
}
