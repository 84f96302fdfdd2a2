"""A partially downloaded file: it is continued, and hashed as the hub hashes it."""

import hashlib
import io
import threading
from pathlib import Path
from typing import Any

from worker.store.refusals import WrongChecksumError
from worker.store.snapshot import File

# Blobs of the hub's large file storage are named by their SHA-256, others by git's hash.
_SHA256_DIGITS = 64
_PIECE_BYTES = 1 << 20


class Stopped(Exception):
    """This process must not write any more: another worker has taken over, or a file failed."""


class Partial(io.FileIO):
    """The file that a download is written to; opened at its end, with the hash of its content.

    Bytes are written to their own place, not appended by the system: two workers that both believe
    they hold the lease write the same bytes to the same places.

    Args:
        path: created if it doesn't exist.
        file: what it becomes. A file that is larger is begun anew.
        stop: nothing more is written once it is set.

    Raises:
        Stopped: ``stop`` is set.
    """

    def __init__(self, path: Path, file: File, stop: threading.Event) -> None:
        if stop.is_set():
            raise Stopped
        path.touch()
        super().__init__(path, "r+b")
        self._file = file
        self._stop = stop
        if path.stat().st_size > file.size:
            super().truncate(0)
        self._hash = hash_rest(self, file)

    def write(self, chunk: Any, /) -> int:
        """Append all of a chunk; return its length.

        Raises:
            Stopped: ``stop`` is set.
            WrongChecksumError: the file would become larger than announced.
        """
        if self._stop.is_set():
            raise Stopped
        rest = memoryview(chunk)
        if self.tell() + len(rest) > self._file.size:
            raise WrongChecksumError(None, "it is longer than announced", self._file.name)
        while rest:
            written = super().write(rest) or 0
            self._hash.update(rest[:written])
            rest = rest[written:]
        return len(chunk)

    def truncate(self, size: int | None = None, /) -> int:
        """Cut the file, and begin its hash anew.

        Raises:
            Stopped: ``stop`` is set.
        """
        if self._stop.is_set():
            raise Stopped
        length = super().truncate(size)
        self.seek(0)
        self._hash = hash_rest(self, self._file)
        return length

    def digest(self) -> str:
        """Return the hub's name for the content so far."""
        return str(self._hash.hexdigest())


def hash_rest(opened: io.FileIO, file: File) -> Any:
    """Read an opened file to its end; return its hash, of the kind that names the blob."""
    if len(str(file.blob)) == _SHA256_DIGITS:
        digest = hashlib.sha256()
    else:
        digest = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    while piece := opened.read(_PIECE_BYTES):
        digest.update(piece)
    return digest
