"""Keeps secrets, by their values, out of what is printed and out of errors; paths out of errors."""

import json
import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO
from urllib.parse import quote

# Characters: a shorter text stands in too many others.
SHORTEST = 8
MASK = "***"
# Paths of this machine, in messages for callers.
_PATH = re.compile(r"(?<![\w:/.])/[\w.@~+-]+(?:/[\w.@~+-]*)+")

# All ways in which a secret may be written, the longest first.
_secrets: list[str] = []


def hide(secrets: Iterable[str]) -> None:
    """Mask these from now on; those that are too short for it are not."""
    for secret in secrets:
        if len(secret) >= SHORTEST:
            written = {secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], quote(secret, safe="")}
            _secrets[:] = sorted({*_secrets, *written}, key=len, reverse=True)


def masked(text: str) -> str:
    """Return a text without the secrets in it."""
    for secret in _secrets:
        if secret in text:
            text = text.replace(secret, MASK)
    return text


def without_paths(text: str) -> str:
    """Return a text without the absolute paths in it."""
    return _PATH.sub("...", text)


class _Masked:
    """A stream of text that masks what is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(masked(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self._stream.writelines(map(masked, lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def mask_output() -> None:
    """Mask what this process prints, and the processes that are forked from it, whoever does.

    Logs, tracebacks and ``print`` write to these streams; what C++ libraries print does not.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, _Masked):
            setattr(sys, name, _Masked(stream))
