"""Downloads single files of a commit over HTTP, and resumes partial downloads.

Xet, the hub's own protocol for large files, is not used: it starts from the beginning in every
process and can't be stopped. For other clients, the hub serves files in Xet at one address that
supports range requests (https://huggingface.co/docs/hub/xet/legacy-git-lfs).
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

# Maximum number of bytes of one request: the hub serves files of hundreds of GB only in ranges.
RANGE_BYTES = 10_000_000_000

# Blobs in the hub's large file storage are named by their SHA-256, others by git's hash.
_SHA256_DIGITS = 64
_READ_BYTES = 1 << 20

_PARTIAL = ".partial"


class DownloadStopped(Exception):
    """This process must stop writing, since it has lost the lease or a file failed."""


class PartialFile(io.FileIO):
    """The file to which a download is written; opened at its end, with the hash of its content.

    Bytes are written at their own offsets, not in the system's append mode: two workers that both
    believe that they have the lease write the same bytes at the same offsets. A file that is larger
    than the download is truncated to nothing. After ``stop``, writes raise ``DownloadStopped``.
    """

    def __init__(self, path: Path, file: File, stop: threading.Event) -> None:
        if stop.is_set():
            raise DownloadStopped
        path.touch()
        super().__init__(path, "r+b")
        self._file = file
        self._stop = stop
        if path.stat().st_size > file.size:
            super().truncate(0)
        self._hash = _hash_rest(self, file)

    def write(self, chunk: Any, /) -> int:
        """Append all of a chunk; return its length."""
        if self._stop.is_set():
            raise DownloadStopped
        rest = memoryview(chunk)
        if self.tell() + len(rest) > self._file.size:
            raise WrongChecksumError(None, "it is longer than announced", self._file.name)
        while rest:
            written = super().write(rest) or 0
            self._hash.update(rest[:written])
            rest = rest[written:]
        return len(chunk)

    def truncate(self, size: int | None = None, /) -> int:
        """Truncate the file, and recompute its hash."""
        if self._stop.is_set():
            raise DownloadStopped
        length = super().truncate(size)
        self.seek(0)
        self._hash = _hash_rest(self, self._file)
        return length

    def digest(self) -> str:
        """Return the hash of the current content, by which the hub names it."""
        return str(self._hash.hexdigest())


@dataclass(frozen=True)
class CommitDownloader:
    """Downloads files of one commit to its repository's folder in a cache.

    The methods may run in several threads. They request and write nothing once ``stop`` is set.
    """

    api: HfApi
    model: str
    commit: str
    folder: Path
    stop: threading.Event
    _locks: dict[Path, threading.Lock] = field(default_factory=dict)

    def snapshot_path(self, name: str) -> Path:
        return self.folder / "snapshots" / self.commit / name

    def stored_bytes(self, file: File) -> int:
        """Return how many bytes of a file are on the disk, according to file sizes alone."""
        if _has_size(self.snapshot_path(file.name), file):
            return file.size
        return max(
            min(file.size, _size_or_zero(path))
            for path in (self._blob_path(file), self._partial_path(file))
        )

    def download_file(self, file: File) -> None:
        """Download a file or the rest of it, unless the snapshot already has it.

        Raises:
            DownloadStopped: ``stop`` is set.
            WrongChecksumError: The hub has sent content with a wrong size or checksum twice.
            hub.HTTPError: The hub refuses the request, or its responses break off without progress.
        """
        if self._is_in_snapshot(file):
            return
        blob = self._blob_path(file)
        # Several files may have the same content.
        with self._locks.setdefault(blob, threading.Lock()):
            if not _has_size(blob, file):
                blob.parent.mkdir(parents=True, exist_ok=True)
                try:
                    self._download_blob(file)
                except WrongChecksumError as error:
                    log.warning("%s: %s: downloading it again", file.name, error.strerror)
                    self._download_blob(file)
            path = self.snapshot_path(file.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            link = path.with_name(f".{path.name}.{uuid4().hex}")
            try:
                link.symlink_to(os.path.relpath(blob, path.parent))
            except OSError:
                # The disk does not support links. Other files with this content download it again.
                blob.replace(path)
            else:
                link.replace(path)

    def remove_partials(self) -> None:
        """Remove all partial files, which belong to other commits once this one is complete."""
        for partial in (self.folder / "blobs").glob(f"*{_PARTIAL}"):
            if not self.stop.is_set():
                partial.unlink(missing_ok=True)

    def _blob_path(self, file: File) -> Path:
        return self.folder / "blobs" / str(file.blob)

    def _partial_path(self, file: File) -> Path:
        return self.folder / "blobs" / f"{file.blob}{_PARTIAL}"

    def _is_in_snapshot(self, file: File) -> bool:
        """Return whether the snapshot has a file, according to the blob's name or the content."""
        path = self.snapshot_path(file.name)
        if not _has_size(path, file):
            return False
        if path.is_symlink():
            return path.resolve().name == file.blob
        # The disk does not support links.
        with io.FileIO(path) as opened:
            return bool(_hash_rest(opened, file).hexdigest() == file.blob)

    def _download_blob(self, file: File) -> None:
        partial, blob = self._partial_path(file), self._blob_path(file)
        with PartialFile(partial, file, self.stop) as opened:
            while opened.tell() < file.size:
                self._download_range(file, opened)
            if opened.digest() != file.blob:
                # It is unknown which part is wrong, so start again.
                opened.truncate(0)
                raise WrongChecksumError(None, "its checksum is wrong", file.name)
            os.fsync(opened.fileno())
        try:
            partial.replace(blob)
        except FileNotFoundError:
            # Another worker, which considered this one dead, has just moved the file.
            if not _has_size(blob, file):
                raise

    def _download_range(self, file: File, partial: PartialFile) -> None:
        """Append the next range, or the part of it that arrives before the connection breaks.

        The caller then requests what follows the last byte, so only a try without one is repeated.
        huggingface_hub's ``http_get`` loses up to ten megabytes if the connection breaks.
        """
        start = partial.tell()
        try:
            hub.retry(
                lambda: self._request_range(file, partial), hub.HTTPError, is_final=_is_hub_response
            )
        except hub.HTTPError as error:
            if _is_hub_response(error) or partial.tell() <= start:
                raise
        if partial.tell() <= start:
            raise WrongChecksumError(None, "it is shorter than announced", file.name)

    def _request_range(self, file: File, partial: PartialFile) -> None:
        if self.stop.is_set():
            raise DownloadStopped
        url = hf_hub_url(self.model, file.name, revision=self.commit, endpoint=self.api.endpoint)
        start = partial.tell()
        end = min(file.size, start + RANGE_BYTES)
        # A range of a compressed response would contain other bytes.
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


def _is_hub_response(error: Exception) -> bool:
    """Return whether the hub responded with an error; transient ones were already retried."""
    return getattr(error, "response", None) is not None


def _has_size(path: Path, file: File) -> bool:
    return path.is_file() and _size_or_zero(path) == file.size


def _size_or_zero(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it doesn't exist or is just being renamed."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _hash_rest(opened: io.FileIO, file: File) -> Any:
    """Read an open file to its end; return its hash, of the kind that names the blob."""
    if len(str(file.blob)) == _SHA256_DIGITS:
        digest = hashlib.sha256()
    else:
        digest = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    while piece := opened.read(_READ_BYTES):
        digest.update(piece)
    return digest
