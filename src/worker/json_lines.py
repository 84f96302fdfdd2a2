"""JSON and events whose strings break no line.

JSON allows three characters in strings at which some readers end a line: U+0085, U+2028 and U+2029.
Among these readers are Python's ``str.splitlines`` and ``iter_lines`` of httpx and OpenAI's client.
"""

import json
from typing import Any

import msgspec

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def escape_line_breaks(text: str) -> str:
    """Escape the characters that break lines in JSON, or in events whose data is JSON."""
    # Each token of a stream passes here, and the first test takes no time.
    if text.isascii():
        return text
    text = text.replace("\x85", r"\u0085")
    return text.replace("\u2028", r"\u2028").replace("\u2029", r"\u2029")


def encode_line(value: Any) -> bytes:
    """Return a value as JSON for one line of a file, without its line feed.

    A text with half of a surrogate pair raises ``UnicodeEncodeError``.
    """
    return escape_line_breaks(msgspec.json.encode(value).decode()).encode()


def encode_unchecked_line(value: Any) -> bytes:
    """Return a caller's value as JSON for one line of a file, with its line feed.

    The line is checked by its reader, like a line of the caller's own file: it may contain NaN, and
    half of a surrogate pair, which is written as its escape.
    """
    return f"{escape_line_breaks(_encode(value))}\n".encode(errors="backslashreplace")
