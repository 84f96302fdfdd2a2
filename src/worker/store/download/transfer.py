"""Downloads single files of a commit over HTTP, each from where an earlier download left it.

Xet, the hub's own protocol for large files, is not used: in every process it begins anew, and it
can't be stopped. The hub serves files that are stored in Xet to other clients, too, as one address
that answers range requests (https://huggingface.co/docs/hub/xet/legacy-git-lfs).
"""

import hashlib
import io
import logging
import os
import threading
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any
from uuid import uuid4

from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # exported lazily
    build_hf_headers,
    hf_raise_for_status,
    http_stream_backoff,
)

from worker.store import hub
from worker.store.refusals import WrongChecksumError
from worker.store.snapshot import File

log = logging.getLogger(__name__)

# Bytes of one request: of a file of hundreds of GB, the hub sends parts only.
RANGE_BYTES = 10_000_000_000

# Blobs of the hub's large file storage are named by their SHA-256, others by git's hash.
_SHA256_DIGITS = 64
_PIECE_BYTES = 1 << 20

_PARTIAL = ".partial"


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
        self._hash = _hash_rest(self, file)

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
        self._hash = _hash_rest(self, self._file)
        return length

    def digest(self) -> str:
        """Return the hub's name for the content so far."""
        return str(self._hash.hexdigest())


@dataclass(frozen=True)
class Transfer:
    """Downloads files of one commit to its repository's folder in a cache.

    Its methods may run in several threads. Nothing more is requested or written once ``stop`` is
    set.
    """

    api: HfApi
    model: str
    commit: str
    folder: Path
    stop: threading.Event
    _locks: dict[Path, threading.Lock] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        """Return the path that a file has in the snapshot."""
        return self.folder / "snapshots" / self.commit / name

    def stored(self, file: File) -> int:
        """Return how many bytes of a file are on the disk, judging by sizes alone."""
        if _has_size(self.path(file.name), file):
            return file.size
        return max(min(file.size, _size(path)) for path in (self._blob(file), self._partial(file)))

    def get(self, file: File) -> None:
        """Download a file, or the rest of it, unless the snapshot has it.

        Raises:
            Stopped: ``stop`` was set.
            WrongChecksumError: the hub has twice sent something else than it announced.
            OSError: the file can't be written.
            hub.HTTPError: the hub has refused, or its answers break off without progress.
        """
        if self._is_right(file):
            return
        blob = self._blob(file)
        # Several names may stand for the same content.
        with self._locks.setdefault(blob, threading.Lock()):
            if not _has_size(blob, file):
                blob.parent.mkdir(parents=True, exist_ok=True)
                try:
                    self._download(file)
                except WrongChecksumError as error:
                    log.warning("%s: %s: it is downloaded once more", file.name, error.strerror)
                    self._download(file)
            # On a disk without links this moves the blob, so other names download it again.
            self._link(blob, self.path(file.name))

    def tidy(self) -> None:
        """Remove partial files, which belong to other commits once this one is complete."""
        for partial in (self.folder / "blobs").glob(f"*{_PARTIAL}"):
            if not self.stop.is_set():
                partial.unlink(missing_ok=True)

    def _blob(self, file: File) -> Path:
        return self.folder / "blobs" / str(file.blob)

    def _partial(self, file: File) -> Path:
        return self.folder / "blobs" / f"{file.blob}{_PARTIAL}"

    def _is_right(self, file: File) -> bool:
        """Return whether the snapshot has a file: judging by the blob's name, or by the content."""
        path = self.path(file.name)
        if not _has_size(path, file):
            return False
        if path.is_symlink():
            return path.resolve().name == file.blob
        # The disk has no links.
        with io.FileIO(path) as opened:
            return bool(_hash_rest(opened, file).hexdigest() == file.blob)

    def _download(self, file: File) -> None:
        partial, blob = self._partial(file), self._blob(file)
        with Partial(partial, file, self.stop) as opened:
            while opened.tell() < file.size:
                self._read_on(file, opened)
            if opened.digest() != file.blob:
                # Nobody knows which part is wrong.
                opened.truncate(0)
                raise WrongChecksumError(None, "its checksum is wrong", file.name)
            os.fsync(opened.fileno())
        try:
            partial.replace(blob)
        except FileNotFoundError:
            # Another worker, which had taken this one for dead, has just done the same.
            if not _has_size(blob, file):
                raise

    def _read_on(self, file: File, partial: Partial) -> None:
        """Append the next range, or as much of it as comes before the connection breaks.

        ``huggingface_hub.file_download.http_get`` would lose the last ten megabytes then.
        """
        begun = partial.tell()
        try:
            hub.retry(lambda: self._read(file, partial), hub.HTTPError, _is_answer)
        except hub.HTTPError as error:
            if _is_answer(error) or partial.tell() <= begun:
                raise
        if partial.tell() <= begun:
            raise WrongChecksumError(None, "it is shorter than announced", file.name)

    def _read(self, file: File, partial: Partial) -> None:
        if self.stop.is_set():
            raise Stopped
        url = hf_hub_url(self.model, file.name, revision=self.commit, endpoint=self.api.endpoint)
        start = partial.tell()
        end = min(file.size, start + RANGE_BYTES)
        # A range of a compressed answer would be one of other bytes.
        headers = {"Accept-Encoding": "identity", "Range": f"bytes={start}-{end - 1}"}
        with http_stream_backoff(
            "GET",
            url,
            headers={**build_hf_headers(), **headers},
            timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
            retry_on_exceptions=(),
        ) as response:
            hf_raise_for_status(response)
            if response.status_code == HTTPStatus.OK:
                # The server ignores ranges: this is the whole file.
                partial.truncate(0)
            for piece in response.iter_bytes():
                partial.write(piece)

    def _link(self, blob: Path, path: Path) -> None:
        """Make a path of the snapshot a link to a blob, in place of what stood there."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid4().hex}")
        try:
            temporary.symlink_to(os.path.relpath(blob, path.parent))
        except OSError:
            # The disk has no links.
            blob.replace(path)
        else:
            temporary.replace(path)


def _is_answer(error: Exception) -> bool:
    """Return whether an error is an answer of the hub's; transient ones have been retried."""
    return getattr(error, "response", None) is not None


def _has_size(path: Path, file: File) -> bool:
    return path.is_file() and _size(path) == file.size


def _size(path: Path) -> int:
    """Return the size of a file in bytes; 0, if it doesn't exist or is just being renamed."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _hash_rest(opened: io.FileIO, file: File) -> Any:
    """Read an opened file to its end; return its hash, of the kind that names the blob."""
    if len(str(file.blob)) == _SHA256_DIGITS:
        digest = hashlib.sha256()
    else:
        digest = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    while piece := opened.read(_PIECE_BYTES):
        digest.update(piece)
    return digest
