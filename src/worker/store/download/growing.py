"""A file that is being downloaded: it grows from where it was left, hashed as the hub does."""

import hashlib
import io
import threading
from pathlib import Path
from typing import Any

from worker.store.refusals import WrongChecksumError
from worker.store.snapshot import File

# Blobs of the hub's large file storage are called by their SHA-256, others by git's hash.
_SHA256_DIGITS = 64
_PIECE_BYTES = 1 << 20


class Stopped(Exception):
    """This process is to write no more."""


class Growing(io.FileIO):
    """A file that is being downloaded: it grows from where it was left, hashed as it does.

    Bytes are written to where they belong, not to the end: two workers that both believe to be
    the only one would write the same.

    Args:
        path: made if it is not there.
        file: what it is to become.
        stop: when it is set, nothing more is written.
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
        self._hash = hashed(self, file)

    def write(self, chunk: Any, /) -> int:
        """Append, all of it.

        Raises:
            Stopped: another worker does it.
            WrongChecksumError: it is more than was announced.
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
        """Begin again, where the server does.

        Raises:
            Stopped: another worker does it.
        """
        if self._stop.is_set():
            raise Stopped
        length = super().truncate(size)
        self.seek(0)
        self._hash = hashed(self, self._file)
        return length

    def digest(self) -> str:
        """Return what the hub would call the content."""
        return str(self._hash.hexdigest())


def hashed(opened: io.FileIO, file: File) -> Any:
    """Hash what is there of a file, from where it stands, as the hub does."""
    if large(file):
        digest = hashlib.sha256()
    else:
        digest = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    while piece := opened.read(_PIECE_BYTES):
        digest.update(piece)
    return digest


def large(file: File) -> bool:
    """Tell whether a file is in the hub's large file storage."""
    return len(str(file.blob)) == _SHA256_DIGITS
