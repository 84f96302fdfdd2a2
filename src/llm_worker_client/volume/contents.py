"""Local files: the parts that they are sent in, and their checksums as S3 has them in its ETags."""

import hashlib
import os
import re
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
        # Always the same for a size, so that another process finds the parts of this one.
        least = -(-found.st_size // MOST_PARTS)
        if least > part_size:
            part_size = -(-least // _BLOCK) * _BLOCK
        state = (found.st_ino, found.st_size, found.st_mtime_ns)
        return cls(path, found.st_size, state, part_size)

    @property
    def parts(self) -> range:
        """The numbers of its parts; they are counted from 1."""
        return range(1, max(1, -(-self.size // self.part_size)) + 1)

    def span(self, part: int) -> tuple[int, int]:
        """Return a part's offset and its size."""
        offset = (part - 1) * self.part_size
        return offset, min(self.part_size, self.size - offset)

    def md5(self, offset: int, size: int) -> bytes:
        """Return the MD5 of some of its bytes."""
        digest = hashlib.md5(usedforsecurity=False)
        with self.path.open("rb") as opened:
            opened.seek(offset)
            while size and (block := opened.read(min(size, _BLOCK))):
                digest.update(block)
                size -= len(block)
        return digest.digest()

    def fits(self, etag: str) -> bool | None:
        """Return whether an ETag is of this content; None: it does not say so."""
        found = _ETAG.fullmatch(etag)
        if not found or (found[2] and int(found[2]) != len(self.parts)):
            return None
        if not found[2]:
            return self.md5(0, self.size).hex() == found[1]
        md5s = b"".join(self.md5(*self.span(part)) for part in self.parts)
        return hashlib.md5(md5s, usedforsecurity=False).hexdigest() == found[1]
