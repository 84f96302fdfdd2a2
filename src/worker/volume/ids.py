"""Ids of objects on the volume: a prefix, and letters and digits that can't be guessed.

If the volume's id is known, ids of objects and names of fine-tuned adapters end with it:
``file-….vol-euvolume01``. See ``worker.volume.location``.
"""

import base64
import hashlib
import re
import secrets

_VOLUME_MARK = ".vol-"
# The platform's ids have ten characters. Names of adapters have no space for long ones, and other
# characters would make the endings ambiguous.
_VOLUME_ID = re.compile(r"[A-Za-z0-9]{6,20}")
_NAME_WITH_VOLUME_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.vol-[A-Za-z0-9]{6,20}")
# The 24 characters are 120 bits in base 32.
_ID_WITHOUT_PREFIX = re.compile(r"[a-z0-9]{24}(\.vol-[A-Za-z0-9]{6,20})?")
_ANY_ID = re.compile(r"[a-z]+[_-][a-z0-9]{24}(-\d+)?(\.vol-[A-Za-z0-9]{6,20})?")


def new_id(prefix: str) -> str:
    """Return a new random id, for example ``file-...`` or ``batch_...``."""
    return prefix + _encode(secrets.token_bytes(15))


def derive_id(prefix: str, *parts: str) -> str:
    """Return an id that depends only on the parts, so that a retry gets the same id."""
    return prefix + _encode(hashlib.sha256("\0".join(parts).encode(errors="replace")).digest()[:15])


def number_id(prefix: str, id: str, number: int) -> str:
    """Return the id of a numbered part of an object, which contains the object's id."""
    name, volume_id = split_volume_id(id)
    return add_volume_id(f"{prefix}{name.rpartition('-')[2]}-{number:08}", volume_id)


def is_id(prefix: str, value: str) -> bool:
    """Return whether a string has the form of an id; such a string is safe as a file name."""
    return (
        value.startswith(prefix) and _ID_WITHOUT_PREFIX.fullmatch(value[len(prefix) :]) is not None
    )


def is_any_id(value: str) -> bool:
    """Return whether a string has the form of an id with any prefix."""
    return _ANY_ID.fullmatch(value) is not None


def is_volume_id(value: str) -> bool:
    """Return whether a string can be the volume's id in names."""
    return _VOLUME_ID.fullmatch(value) is not None


def add_volume_id(name: str, volume_id: str | None) -> str:
    """Return a name with the volume's id at its end; unchanged if the id is not known."""
    return name if volume_id is None else f"{name}{_VOLUME_MARK}{volume_id}"


def split_volume_id(name: str) -> tuple[str, str | None]:
    """Return a name without the volume's id at its end, and the volume's id or None."""
    if _NAME_WITH_VOLUME_ID.fullmatch(name) is None:
        return name, None
    stem, _, volume_id = name.rpartition(_VOLUME_MARK)
    return stem, volume_id


def _encode(data: bytes) -> str:
    return base64.b32encode(data).decode().lower()
