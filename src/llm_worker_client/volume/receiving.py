"""Reads a file of the volume, and goes on where another process was cut."""

import contextlib
import errno
import glob
import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from botocore.exceptions import BotoCoreError

from llm_worker_client.volume.bucket import Bucket, Stored
from llm_worker_client.volume.contents import Content
from llm_worker_client.volume.errors import Changed, Damaged, NoSpace, Stopped, VolumeError
from llm_worker_client.volume.progress import Progress

_BLOCK = 2**18


class Receiving:
    """Reads one file.

    Args:
        bucket: where from.
        file: what it is there.
        path: where to.
        progress: counts its bytes.
        stop: set to give up.
    """

    def __init__(
        self, bucket: Bucket, file: Stored, path: Path, progress: Progress, stop: threading.Event
    ) -> None:
        self._bucket = bucket
        self._file = file
        self._path = path
        self._progress = progress
        self._stop = stop
        # Of this content alone: what is left of another one is never gone on with.
        mark = hashlib.sha256(f"{file.key} {file.etag} {file.size}".encode()).hexdigest()[:16]
        self._part = path.with_name(f".{path.name}.{mark}.part")

    def receive(self, part_size: int) -> None:
        """Read what is not there yet; then the file has its name.

        Args:
            part_size: in which files are sent; the checksum may depend on it.

        Raises:
            VolumeError: it failed; a further call goes on where this one was.
        """
        with _failures(self._path):
            with self._part.open("ab", buffering=0) as out:
                if out.tell() > self._file.size:
                    out.truncate(0)
                self._progress.find(out.tell())
                self._fill(out)
                os.fsync(out.fileno())
            self._check(part_size)
            self._part.replace(self._path)
            for left in self._path.parent.glob(f".{glob.escape(self._path.name)}.*.part"):
                left.unlink(missing_ok=True)
            _sync(self._path.parent)

    def _fill(self, out: BinaryIO) -> None:
        """Read to the end; tries are counted anew whenever something has come.

        Raises:
            Damaged: there is less than the volume says.
        """
        while (offset := out.seek(0, os.SEEK_END)) < self._file.size:
            self._bucket.again(lambda: self._read(out))
            if out.tell() == offset:
                raise Damaged(f"{self._file.key} has fewer bytes than the volume says.")

    def _read(self, out: BinaryIO) -> None:
        """Ask once for what is missing, and write what comes."""
        offset = out.seek(0, os.SEEK_END)
        answer = self._bucket.read(self._file, offset)
        with contextlib.closing(answer["Body"]) as body:
            if answer["ETag"].strip('"') != self._file.etag:
                raise Changed("The file on the volume has changed meanwhile: start again.")
            if not str(answer.get("ContentRange", "")).startswith(f"bytes {offset}-"):
                self._progress.lose(offset)
                out.truncate(0)
            try:
                for block in iter(lambda: body.read(_BLOCK), b""):
                    if self._stop.is_set():
                        raise Stopped("The transfer was stopped.")
                    _write(out, block)
                    self._progress.move(len(block))
            except BotoCoreError:
                if out.tell() == offset:
                    raise

    def _check(self, part_size: int) -> None:
        content = Content.of(self._part, part_size)
        if content.size != self._file.size or content.fits(self._file.etag) is False:
            self._part.unlink()
            raise Damaged(f"{self._file.key} has arrived with other bytes: try again.")


def _write(out: BinaryIO, block: bytes) -> None:
    view = memoryview(block)
    while view:
        view = view[out.write(view) :]


def _sync(directory: Path) -> None:
    """Make a name durable, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _failures(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"There is no space left for {path}; what has come is kept: start again."
            raise NoSpace(message) from None
        raise VolumeError(f"{path}: {error.strerror or type(error).__name__}") from None
