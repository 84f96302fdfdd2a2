"""Masks the values of secrets in output and in errors, and removes paths from errors."""

import json
import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO
from urllib.parse import quote, unquote

# Minimum number of characters of a masked secret: shorter strings would match ordinary words.
MIN_LENGTH = 8
MASK = "***"
# Matches paths of this machine in messages for callers.
_PATH = re.compile(r"(?<![\w:/.])/[\w.@~+-]+(?:/[\w.@~+-]*)+")

# The scheme of a URL, and the user and the password in it.
_URL_CREDENTIALS = re.compile(r"(\w{1,20}://)([^/?#\s]+)@")

# All spellings of the secrets, sorted by length, the longest first.
_secrets: list[str] = []


def add_secrets(secrets: Iterable[str]) -> None:
    """Mask these secrets from now on; ignore those shorter than ``MIN_LENGTH``."""
    for secret in secrets:
        if len(secret) >= MIN_LENGTH:
            forms = {secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], quote(secret, safe="")}
            _secrets[:] = sorted({*_secrets, *forms}, key=len, reverse=True)


def add_url_credentials(texts: Iterable[str]) -> None:
    """Mask from now on the users and the passwords in URLs, such as a proxy's, in these texts."""
    for text in texts:
        for scheme, credentials in _URL_CREDENTIALS.findall(text):
            password = credentials.partition(":")[2]
            # The first form is long enough for any password.
            add_secrets([f"{scheme}{credentials}@", credentials, password, unquote(password)])


def mask_secrets(text: str) -> str:
    for secret in _secrets:
        if secret in text:
            text = text.replace(secret, MASK)
    return text


def remove_paths(text: str) -> str:
    return _PATH.sub("...", text)


class _MaskedStream:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(mask_secrets(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self._stream.writelines(map(mask_secrets, lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def mask_output() -> None:
    """Mask secrets in the output of this process and of the processes forked from it.

    Output of C++ libraries is not masked: they don't write to Python's streams.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, _MaskedStream):
            setattr(sys, name, _MaskedStream(stream))
