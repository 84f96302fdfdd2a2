"""Recognises compressed files, which callers send in place of text, by their first bytes."""

import re
from pathlib import Path

# The group that matches has the format's name.
_FORMATS = re.compile(
    rb"(?P<gzip>\x1f\x8b)|(?P<zstd>\x28\xb5\x2f\xfd)|(?P<zip>PK\x03\x04)|(?P<xz>\xfd7zXZ\x00)"
    rb"|(?P<bzip2>BZh[1-9]1AY&SY)|(?P<lz4>\x04\x22\x4d\x18)"
)
_LONGEST = 10


def find_compression(path: Path) -> str | None:
    """Return the name of the format in which a file is compressed; None if it is not."""
    with path.open("rb") as file:
        match = _FORMATS.match(file.read(_LONGEST))
    return match.lastgroup if match else None
