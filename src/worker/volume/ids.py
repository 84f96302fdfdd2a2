"""Ids of what is kept on the volume: a prefix, and letters and digits that nobody can guess."""

import base64
import hashlib
import re
import secrets

# 120 bits in base 32.
_FORM = re.compile(r"[a-z0-9]{24}")


def new(prefix: str) -> str:
    """Return an id that nothing has: ``file-...``, ``batch_...``."""
    return prefix + _text(secrets.token_bytes(15))


def derived(prefix: str, *origin: str) -> str:
    """Return the id that always follows from the same origin, where a retry must mean resume."""
    return prefix + _text(hashlib.sha256("\0".join(origin).encode(errors="replace")).digest()[:15])


def fits(prefix: str, text: str) -> bool:
    """Return whether a text has the form of an id: it is then safe as a file's name."""
    return text.startswith(prefix) and _FORM.fullmatch(text[len(prefix) :]) is not None


def _text(random: bytes) -> str:
    return base64.b32encode(random).decode().lower()
