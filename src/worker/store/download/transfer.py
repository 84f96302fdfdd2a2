"""Brings single files of a repository's commit into the hub's cache, each where it left off."""

import io
import logging
import os
import threading
from http import HTTPStatus
from pathlib import Path
from uuid import uuid4

from huggingface_hub import HfApi, constants, get_hf_file_metadata, hf_hub_url
from huggingface_hub.file_download import (  # type: ignore[attr-defined]  # for its own use
    is_xet_available,
    xet_get,
)
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # exported lazily
    build_hf_headers,
    hf_raise_for_status,
    http_stream_backoff,
)

from worker.store.download.growing import Growing, Stopped, hashed, large
from worker.store.download.retry import again
from worker.store.hub import HTTPError
from worker.store.refusals import WrongChecksumError
from worker.store.snapshot import File

log = logging.getLogger(__name__)

# How long the hub may take to say how a file is stored.
_PATIENCE_S = 15.0

_PARTIAL = ".partial"
_XET = ".xet"


def _for_good(error: Exception) -> bool:
    """Tell whether the hub has refused: what may pass it has been asked for again already."""
    return getattr(error, "response", None) is not None


class Transfer:
    """Gets files of one commit.

    Args:
        api: knows the hub.
        model: the repository.
        commit: whose files.
        folder: of the repository, in a cache.
        stop: ends every transfer when it is set.
    """

    def __init__(
        self, api: HfApi, model: str, commit: str, folder: Path, stop: threading.Event
    ) -> None:
        self._api = api
        self._model = model
        self.commit = commit
        self._folder = folder
        self._stop = stop
        self._locks: dict[Path, threading.Lock] = {}
        self._xet = is_xet_available()
        # Unlike what comes over HTTP, no other worker could write the same to it.
        self._through = f".{uuid4().hex}{_XET}"

    def path(self, name: str) -> Path:
        """Return where a file is to be found when it is there."""
        return self._folder / "snapshots" / self.commit / name

    def there(self, file: File) -> int:
        """Return how many bytes of a file are on the disk, by its looks."""
        if _as_large(self.path(file.name), file):
            return file.size
        partials = self._partial(file), self._partial(file, self._through)
        return max(min(file.size, _length(each)) for each in (self._blob(file), *partials))

    def get(self, file: File) -> None:
        """Bring a file into its place, if it is not there.

        Raises:
            Stopped: another worker does it.
            WrongChecksumError: twice, what was sent was not what was announced.
            Exception: one of the hub's, or of the disk's.
        """
        if self._right(file):
            return
        blob = self._blob(file)
        # Several names may stand for the same content.
        with self._locks.setdefault(blob, threading.Lock()):
            if not _as_large(blob, file):
                blob.parent.mkdir(parents=True, exist_ok=True)
                try:
                    self._bring(file)
                except WrongChecksumError as error:
                    log.warning("%s: %s: it is downloaded once more", file.name, error.strerror)
                    self._bring(file)
            # Where there are no links, the first of the names takes it away from the others.
            self._link(blob, self.path(file.name))

    def tidy(self) -> None:
        """Remove what was left of files that nobody wants any more."""
        for left in (self._folder / "blobs").glob(f"*{_PARTIAL}"):
            if not self._stop.is_set():
                left.unlink(missing_ok=True)

    def _blob(self, file: File) -> Path:
        return self._folder / "blobs" / str(file.blob)

    def _partial(self, file: File, way: str = "") -> Path:
        return self._folder / "blobs" / f"{file.blob}{way}{_PARTIAL}"

    def _right(self, file: File) -> bool:
        """Tell whether a file is in its place: by its blob's name, or by its content."""
        path = self.path(file.name)
        if not _as_large(path, file):
            return False
        if path.is_symlink():
            return path.resolve().name == file.blob
        # Where links are not to be had.
        with io.FileIO(path) as opened:
            return bool(hashed(opened, file).hexdigest() == file.blob)

    def _bring(self, file: File) -> None:
        url = hf_hub_url(self._model, file.name, revision=self.commit, endpoint=self._api.endpoint)
        if not self._through_xet(url, file):
            self._through_http(url, file)

    def _through_http(self, url: str, file: File) -> None:
        partial, blob = self._partial(file), self._blob(file)
        with Growing(partial, file, self._stop) as growing:
            while growing.tell() < file.size:
                self._read_on(url, growing)
            if growing.digest() != file.blob:
                # Which part of it is wrong nobody knows.
                growing.truncate(0)
                raise WrongChecksumError(None, "its checksum is wrong", file.name)
            os.fsync(growing.fileno())
        try:
            partial.replace(blob)
        except FileNotFoundError:
            # Another worker, which took this one for dead, was as far a moment before.
            if not _as_large(blob, file):
                raise

    def _read_on(self, url: str, growing: Growing) -> None:
        """Read until the file is whole, or the connection breaks after it has grown.

        The hub's own function for this keeps nothing of the last ten megabytes when it breaks.
        """
        begun = growing.tell()
        try:
            again(lambda: self._read(url, growing), HTTPError, _for_good)
        except HTTPError as error:
            if _for_good(error) or growing.tell() <= begun:
                raise
        if growing.tell() <= begun:
            raise WrongChecksumError(None, "it is shorter than announced", growing.name)

    def _read(self, url: str, growing: Growing) -> None:
        if self._stop.is_set():
            raise Stopped
        # Compressed on the way, a file could not be continued.
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        if at := growing.tell():
            headers["Range"] = f"bytes={at}-"
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with http_stream_backoff(
            "GET", url, headers=headers, timeout=timeout, retry_on_exceptions=()
        ) as response:
            hf_raise_for_status(response)
            if response.status_code == HTTPStatus.OK:
                growing.truncate(0)
            for piece in response.iter_bytes():
                growing.write(piece)

    def _through_xet(self, url: str, file: File) -> bool:
        """Use the hub's own protocol for large files, if this one is stored so; say if it was.

        It is faster, but begins anew in every process: what was begun over HTTP is continued so.
        """
        if not large(file) or not self._xet or self._partial(file).exists():
            return False
        endpoint = self._api.endpoint
        metadata = get_hf_file_metadata(
            url, timeout=_PATIENCE_S, endpoint=endpoint, retry_on_errors=True
        )
        if metadata.xet_file_data is None:
            return False
        for left in (self._folder / "blobs").glob(f"{file.blob}.*{_XET}{_PARTIAL}"):
            left.unlink(missing_ok=True)
        partial = self._partial(file, self._through)
        try:
            xet_get(
                incomplete_path=partial,
                xet_file_data=metadata.xet_file_data,
                headers=build_hf_headers(),
                expected_size=file.size,
                displayed_filename=file.name,
            )
        except (RuntimeError, OSError, ValueError, HTTPError) as error:
            log.warning("%s: not through Xet (%s), but over HTTP", file.name, error)
            partial.unlink(missing_ok=True)
            # It is given up only after a while, and would be for each file.
            self._xet = False
            return False
        if self._stop.is_set():
            raise Stopped
        if not _as_large(partial, file):
            partial.unlink(missing_ok=True)
            raise WrongChecksumError(None, "its size is wrong", file.name)
        partial.replace(self._blob(file))
        return True

    def _link(self, blob: Path, path: Path) -> None:
        """Let a file's name in the snapshot lead to its blob, whatever stood there."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid4().hex}")
        try:
            temporary.symlink_to(os.path.relpath(blob, path.parent))
        except OSError:
            # The disk has no links.
            blob.replace(path)
        else:
            temporary.replace(path)


def _as_large(path: Path, file: File) -> bool:
    return path.is_file() and _length(path) == file.size


def _length(path: Path) -> int:
    """Return how long a file is; of one that is not there, or just being renamed, 0."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
