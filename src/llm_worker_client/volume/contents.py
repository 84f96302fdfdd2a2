"""Checksums of local files as S3 has them in its ETags, and the parts that files are sent in."""

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# The platform's bounds of a part, and S3's of their number.
LARGEST_PART = 500_000_000
MOST_PARTS = 10_000
PART = 8 * 2**20
_BLOCK = 2**20
# MD5 of a file, or of the MD5s of so many parts.
_ETAG = re.compile(r"([0-9a-f]{32})(?:-(\d+))?")


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of a file that are sent together; parts are counted from 1."""

    number: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Content:
    """A local file, as it is when this is made.

    Args:
        path: of the file.
        size: in bytes.
        state: differs when anybody has written to it.
        part_size: of all parts but the last.
    """

    path: Path
    size: int
    state: tuple[int, ...]
    part_size: int

    @classmethod
    def of(cls, path: Path, part_size: int) -> "Content":
        """Look at a file.

        Raises:
            OSError: it can't be read.
        """
        with path.open("rb") as opened:
            found = os.fstat(opened.fileno())
        size = found.st_size
        # Always the same for a size, so that another process finds the parts of this one.
        least = -(-size // MOST_PARTS)
        state = (found.st_ino, size, found.st_mtime_ns)
        if least > part_size:
            part_size = -(-least // _BLOCK) * _BLOCK
        return cls(path, size, state, part_size)

    @property
    def spans(self) -> list[Span]:
        return [
            Span(number, offset, min(self.part_size, self.size - offset))
            for number, offset in enumerate(range(0, max(self.size, 1), self.part_size), 1)
        ]

    def is_as_it_was(self) -> bool:
        return Content.of(self.path, self.part_size).state == self.state

    def md5(self, span: Span | None = None) -> bytes:
        """Return the MD5 of a part, or of all."""
        return _md5(self.path, *((span.offset, span.size) if span else (0, self.size)))

    def fits(self, etag: str) -> bool | None:
        """Return whether an ETag is of this content; None: it does not say so."""
        found = _ETAG.fullmatch(etag)
        if not found or (found[2] and int(found[2]) != len(self.spans)):
            return None
        if not found[2]:
            return self.md5().hex() == found[1]
        return composite([self.md5(span) for span in self.spans]) == etag


def composite(md5s: list[bytes]) -> str:
    """Return the ETag of a file that was sent in parts with these MD5s."""
    return f"{hashlib.md5(b''.join(md5s), usedforsecurity=False).hexdigest()}-{len(md5s)}"


def sha256(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def is_md5(etag: str) -> bool:
    found = _ETAG.fullmatch(etag)
    return found is not None and not found[2]


def _md5(path: Path, offset: int, size: int) -> bytes:
    digest = hashlib.md5(usedforsecurity=False)
    for block in _blocks(path, offset, size):
        digest.update(block)
    return digest.digest()


def _blocks(path: Path, offset: int, size: int) -> Iterator[bytes]:
    with path.open("rb") as opened:
        opened.seek(offset)
        while size and (block := opened.read(min(size, _BLOCK))):
            size -= len(block)
            yield block
