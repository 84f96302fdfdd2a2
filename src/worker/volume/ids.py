"""Ids of objects on the volume: a prefix, and letters and digits that can't be guessed."""

import base64
import hashlib
import re
import secrets

# 120 bits in base 32.
_SUFFIX = re.compile(r"[a-z0-9]{24}")


def new_id(prefix: str) -> str:
    """Return a new random id, for example ``file-...`` or ``batch_...``."""
    return prefix + _encode(secrets.token_bytes(15))


def derive_id(prefix: str, *parts: str) -> str:
    """Return an id that depends only on the parts, so that a retry gets the same id."""
    return prefix + _encode(hashlib.sha256("\0".join(parts).encode(errors="replace")).digest()[:15])


def is_id(prefix: str, value: str) -> bool:
    """Return whether a string has the form of an id; such a string is safe as a file name."""
    return value.startswith(prefix) and _SUFFIX.fullmatch(value[len(prefix) :]) is not None


def _encode(data: bytes) -> str:
    return base64.b32encode(data).decode().lower()
