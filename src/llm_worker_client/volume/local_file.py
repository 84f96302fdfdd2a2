"""A local file, its parts for an upload, and its checksums to compare with S3's ETags."""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

# The platform's limit for the size of a part, in bytes, and S3's limit for the number of parts.
MAX_PART_SIZE = 500_000_000
MAX_PARTS = 10_000
DEFAULT_PART_SIZE = 8 * 2**20
_BLOCK_SIZE = 2**20
# An ETag: the MD5 of a file, or the MD5 of its parts' MD5s and the number of parts.
_ETAG = re.compile(r"([0-9a-f]{32})(?:-(\d+))?")


@dataclass(frozen=True, slots=True)
class LocalFileState:
    """The state of a local file at the time when this object was created.

    Args:
        path: Path of the file.
        size: Size in bytes.
        fingerprint: Inode, size and time of the last change, to detect changes.
        part_size: Size in bytes of every part except the last.
    """

    path: Path
    size: int
    fingerprint: tuple[int, ...]
    part_size: int

    @classmethod
    def from_path(cls, path: Path, part_size: int) -> "LocalFileState":
        """Return the state of a file; its parts are larger if ``part_size`` makes too many.

        Raises:
            OSError: If the file can't be read.
        """
        with path.open("rb") as file:
            stat = os.fstat(file.fileno())
        # The parts depend on the two sizes only, so that another process finds the same parts.
        min_part_size = -(-stat.st_size // MAX_PARTS)
        if min_part_size > part_size:
            part_size = -(-min_part_size // _BLOCK_SIZE) * _BLOCK_SIZE
        fingerprint = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        return cls(path, stat.st_size, fingerprint, part_size)

    @property
    def part_numbers(self) -> range:
        """The numbers of the file's parts, starting at 1. An empty file has one part."""
        return range(1, max(1, -(-self.size // self.part_size)) + 1)

    def part_span(self, part: int) -> tuple[int, int]:
        """Return the offset and the size of a part."""
        offset = (part - 1) * self.part_size
        return offset, min(self.part_size, self.size - offset)

    def md5_of_range(self, offset: int, size: int) -> bytes:
        """Return the MD5 of a range of bytes."""
        digest = hashlib.md5(usedforsecurity=False)
        with self.path.open("rb") as file:
            file.seek(offset)
            while size and (block := file.read(min(size, _BLOCK_SIZE))):
                digest.update(block)
                size -= len(block)
        return digest.digest()

    def matches_etag(self, etag: str) -> bool | None:
        """Return whether an ETag belongs to the file's content; None if they can't be compared."""
        match = _ETAG.fullmatch(etag)
        if not match or (match[2] and int(match[2]) != len(self.part_numbers)):
            return None
        if not match[2]:
            return self.md5_of_range(0, self.size).hex() == match[1]
        md5s = b"".join(self.md5_of_range(*self.part_span(part)) for part in self.part_numbers)
        return hashlib.md5(md5s, usedforsecurity=False).hexdigest() == match[1]
