"""Inputs of batches: those that are refused, with the mistake and its line, and odd ones."""

import json
from dataclasses import dataclass
from typing import Any

from support.batches import as_text, line, lines

# Of the worker that reads them.
MOST_LINES = 5
LONGEST_LINE = 200_000
ENVIRON = {
    "BATCH_MAX_REQUESTS": str(MOST_LINES),
    "MAX_INPUT_MB": str(LONGEST_LINE / 1_000_000),
}

BOM = b"\xef\xbb\xbf"
GOOD = as_text(lines(1))
NO_JSON = "invalid_json_line"


def long(name: str, size: int) -> bytes:
    """Return a line of so many bytes, its line feed not counted."""
    empty = as_text([line(name, messages=[{"role": "user", "content": ""}])])
    content = "a" * (size + 1 - len(empty))
    text = as_text([line(name, messages=[{"role": "user", "content": content}])])
    assert len(text) == size + 1
    return text


def with_custom_id(text: str) -> bytes:
    """Return a line that has this JSON as its custom_id."""
    return as_text([line("NAME")]).replace(b'"NAME"', text.encode(errors="surrogatepass"), 1)


def with_body(text: str) -> bytes:
    return as_text([line("NAME", body=0)]).replace(b'{"body": 0}', text.encode())


def but(**changes: Any) -> bytes:
    """Return a line with other values of its keys; None leaves one out."""
    changed = {**line("c"), **changes}
    return as_text([{key: value for key, value in changed.items() if value is not None}])


@dataclass(frozen=True)
class Wrong:
    """An input that is refused.

    Args:
        content: of the file.
        code: of its first mistake; ``number``: its line; ``param``: its key.
        says: what its message has.
    """

    content: bytes
    code: str
    number: int | None
    param: str | None = None
    says: str = ""


WRONG = {
    "no lines": Wrong(b"", "empty_file", None, says="no lines"),
    "only a line feed": Wrong(b"\n", "empty_file", None),
    "only blank lines": Wrong(b"\n \r\n\t\n   ", "empty_file", None),
    "only a byte order mark": Wrong(BOM, "empty_file", None),
    "text": Wrong(GOOD + b"Hello\n", NO_JSON, 2, says="no JSON"),
    "half an object": Wrong(GOOD + GOOD[:-5] + b"\n", NO_JSON, 2),
    "half an object at the end": Wrong(GOOD + GOOD[:-5], NO_JSON, 2),
    "two objects in a line": Wrong(GOOD[:-1] + GOOD, NO_JSON, 1),
    "an object over two lines": Wrong(b'{"custom_id":\n"a"}\n', NO_JSON, 1),
    "an array": Wrong(GOOD + b"[1]\n", NO_JSON, 2, says="no JSON object"),
    "an array of lines": Wrong(json.dumps(lines(2)).encode(), NO_JSON, 1, says="object"),
    "a number": Wrong(b"5\n", NO_JSON, 1, says="object"),
    "null": Wrong(b"null\n", NO_JSON, 1, says="object"),
    "a string": Wrong(b'"a"\n', NO_JSON, 1, says="object"),
    "CR only": Wrong(as_text(lines(2)).replace(b"\n", b"\r"), NO_JSON, 1),
    "UTF-16 with its mark": Wrong(GOOD.decode().encode("utf-16"), NO_JSON, 1),
    "UTF-16 without": Wrong(GOOD.decode().encode("utf-16-le"), NO_JSON, 1),
    "UTF-32": Wrong(GOOD.decode().encode("utf-32"), NO_JSON, 1),
    "Latin-1": Wrong(GOOD + with_custom_id('"\udcfc"')[:-1] + b"\n", NO_JSON, 2),
    "Latin-1 in a body": Wrong(GOOD.replace(b"c0", b"\xfc"), NO_JSON, 1),
    "a NUL byte": Wrong(GOOD.replace(b"c0", b"c\x000"), NO_JSON, 1),
    "NUL bytes only": Wrong(b"\x00" * 100, NO_JSON, 1),
    "a zipped file": Wrong(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03", NO_JSON, 1),
    "half a surrogate pair": Wrong(with_custom_id(r'"\ud800"'), NO_JSON, 1),
    "the second half of one": Wrong(with_body(r'{"messages": "\udc00"}'), NO_JSON, 1),
    "a surrogate as bytes": Wrong(with_custom_id('"\ud800"'), NO_JSON, 1),
    "100,000 brackets": Wrong(GOOD + with_body("[" * 100_000), NO_JSON, 2),
    "100,000 brackets, closed": Wrong(with_body("[" * 99_000 + "]" * 99_000), NO_JSON, 1),
    "100,000 objects": Wrong(b'{"a":' * 30_000 + b"1" + b"}" * 30_000, NO_JSON, 1),
    "a number beyond all": Wrong(with_body('{"seed": 1e999}'), NO_JSON, 1),
    "a number of 5,000 digits": Wrong(with_body('{"seed": %s}' % ("1" * 5_000)), NO_JSON, 1),
    "NaN": Wrong(GOOD + with_body('{"temperature": NaN}'), NO_JSON, 2),
    "Infinity": Wrong(with_body('{"temperature": -Infinity}'), NO_JSON, 1),
    "a mark in the middle": Wrong(GOOD + BOM + GOOD, NO_JSON, 2),
    "two marks": Wrong(BOM + BOM + GOOD, NO_JSON, 1),
    "single quotes": Wrong(GOOD.replace(b'"', b"'"), NO_JSON, 1),
    "a comment": Wrong(b"# mine\n" + GOOD, NO_JSON, 1),
    "a trailing comma": Wrong(GOOD[:-1] + b",\n", NO_JSON, 1),
    "no custom_id": Wrong(GOOD + but(custom_id=None), "invalid_custom_id", 2, "custom_id"),
    "custom_id null": Wrong(with_custom_id("null"), "invalid_custom_id", 1, "custom_id"),
    "custom_id a number": Wrong(but(custom_id=1), "invalid_custom_id", 1, "custom_id"),
    "custom_id empty": Wrong(but(custom_id=""), "invalid_custom_id", 1, "custom_id"),
    "custom_id an object": Wrong(but(custom_id={"a": 1}), "invalid_custom_id", 1, "custom_id"),
    "custom_id too long": Wrong(
        but(custom_id="x" * 513), "invalid_custom_id", 1, "custom_id", "1 to 512"
    ),
    "custom_id twice": Wrong(
        GOOD + b"\n" + as_text(lines(2)), "duplicate_custom_id", 3, "custom_id", "line 1"
    ),
    "custom_id twice, written otherwise": Wrong(
        GOOD + with_custom_id(r'"\u0063\u0030"'), "duplicate_custom_id", 2, "custom_id", "line 1"
    ),
    "another url": Wrong(
        GOOD + but(url="/v1/completions"), "invalid_url", 2, "url", "/v1/chat/completions"
    ),
    "a whole url": Wrong(but(url="https://a/v1/chat/completions"), "invalid_url", 1, "url"),
    "a url without /v1": Wrong(but(url="/chat/completions"), "invalid_url", 1, "url"),
    "no url": Wrong(but(url=None), "invalid_url", 1, "url"),
    "url a list": Wrong(but(url=["/v1/chat/completions"]), "invalid_url", 1, "url"),
    "GET": Wrong(GOOD + but(method="GET"), "invalid_method", 2, "method", "POST"),
    "post": Wrong(but(method="post"), "invalid_method", 1, "method"),
    "no method": Wrong(but(method=None), "invalid_method", 1, "method"),
    "stream": Wrong(GOOD + but(body={"stream": True}), "invalid_body", 2, "body", "stream"),
    "stream as a text": Wrong(but(body={"stream": "true"}), "invalid_body", 1, "body"),
    "no body": Wrong(but(body=None), "invalid_body", 1, "body"),
    "body null": Wrong(with_body("null"), "invalid_body", 1, "body"),
    "body a list": Wrong(GOOD + but(body=[1]), "invalid_body", 2, "body"),
    "body a text": Wrong(but(body="{}"), "invalid_body", 1, "body"),
    "a line too many": Wrong(
        as_text(lines(MOST_LINES + 1)), "too_many_requests", None, says="BATCH_MAX_REQUESTS"
    ),
    "a line too long": Wrong(
        GOOD + long("x", LONGEST_LINE + 1) + GOOD.replace(b"c0", b"y"),
        "line_too_large",
        2,
        says="MAX_INPUT_MB",
    ),
    "a last line too long": Wrong(
        GOOD + long("x", LONGEST_LINE + 1)[:-1], "line_too_large", 2, says="MAX_INPUT_MB"
    ),
    "a line far too long": Wrong(
        GOOD + long("x", 7 * LONGEST_LINE), "line_too_large", 2, says="MAX_INPUT_MB"
    ),
    "a last line far too long": Wrong(
        GOOD + long("x", 5 * LONGEST_LINE)[:-1], "line_too_large", 2, says="MAX_INPUT_MB"
    ),
    "a line of too many blanks": Wrong(
        GOOD + b" " * (2 * LONGEST_LINE) + b"\n", "line_too_large", 2, says="MAX_INPUT_MB"
    ),
}


@dataclass(frozen=True)
class Odd:
    """An input that is accepted.

    Args:
        content: of the file, with the lines c0, c1, ...
        numbers: of its lines.
    """

    content: bytes
    numbers: tuple[int, ...]


ODD = {
    "a byte order mark": Odd(BOM + as_text(lines(2)), (1, 2)),
    "a mark on a blank line": Odd(BOM + b"\n" + as_text(lines(2)), (2, 3)),
    "CRLF": Odd(as_text(lines(2)).replace(b"\n", b"\r\n"), (1, 2)),
    "CRLF, no last one": Odd(as_text(lines(2)).replace(b"\n", b"\r\n")[:-2], (1, 2)),
    "no last line feed": Odd(as_text(lines(2))[:-1], (1, 2)),
    "blank lines": Odd(b"\n\r\n" + as_text(lines(2)).replace(b"\n", b"\n\n \t\n"), (3, 6)),
    "blanks around": Odd(b"  " + as_text(lines(2)).replace(b"\n", b"\t \n   "), (1, 2)),
    "as many lines as may be": Odd(as_text(lines(MOST_LINES)), (1, 2, 3, 4, 5)),
    "as many, and blank ones": Odd(as_text(lines(MOST_LINES)) + b"\n\n", (1, 2, 3, 4, 5)),
    "a line as long as may be": Odd(
        long("c0", LONGEST_LINE) + as_text(lines(2))[len(GOOD) :], (1, 2)
    ),
    "the same with CRLF": Odd(long("c0", LONGEST_LINE)[:-1] + b"\r\n", (1,)),
    "the same without an end": Odd(long("c0", LONGEST_LINE)[:-1], (1,)),
    "keys that nobody knows": Odd(but(custom_id="c0", mine={"a": 1}), (1,)),
    "stream false": Odd(but(custom_id="c0", body={"messages": [], "stream": False}), (1,)),
}
