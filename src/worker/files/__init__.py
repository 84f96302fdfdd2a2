"""Files of callers and of the worker on the volume: ``worker/files/<id>``.

``Files`` creates, lists and removes them. Each file is a directory with its content and its
metadata, a ``StoredFile``, which appears and disappears atomically and never changes. A file may
also refer to a caller's own file on the volume, which is only read. An index has the order of the
files, for lists. ``Quota`` (``quota``) limits the space and the number of objects of callers, also
for batches, fine-tunes and receipts. Expired files are not found; ``Files.sweep`` removes them.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from worker.errors import Conflict, InputTooLarge, InvalidInput, NoSuchObject, VolumeError
from worker.files.quota import FILE_OVERHEAD, MEGABYTE, Quota
from worker.settings import Settings
from worker.validation import StrictModel
from worker.volume import Volume, ids, translate_os_errors
from worker.volume.durable import atomic_directory, remove_directory
from worker.volume.pages import (
    MAX_OBJECTS,
    IndexEntry,
    Page,
    TimeIndex,
    read_page,
    unknown_position_error,
)

__all__ = ["FILE_PREFIX", "MEGABYTE", "Files", "StoredFile"]

log = logging.getLogger(__name__)

DAY_S = 86_400
# Seconds after the last write until an incomplete file counts as abandoned.
ABANDONED_S = DAY_S

FILE_PREFIX = "file-"
CONTENT, METADATA = "content", "meta.json"

# Purposes that callers may upload a file for. Files that the worker writes have other purposes, for
# example "batch_output".
Purpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]
# Purpose of a file that is uploaded without one.
DEFAULT_PURPOSE: Purpose = "fine-tune"


class StoredFile(StrictModel):
    """The metadata of a complete file, which never changes.

    Args:
        id: ``file-`` and 24 letters and digits, and the volume's id if it is known.
        bytes: Size of the content in bytes.
        created_at: Creation time in seconds since 1970.
        filename: Name for callers, which is not a name on the disk.
        purpose: Purpose as in OpenAI's API.
        expires_at: Expiry time in seconds since 1970; None for never.
        path: Path from the volume's root to the caller's file that this one refers to; None if the
            content is the worker's own copy. Never sent to callers.
    """

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None
    path: str | None = None

    @property
    def is_expired(self) -> bool:
        return self.index_entry.is_expired

    @property
    def index_entry(self) -> IndexEntry:
        return IndexEntry(self.created_at, self.id, self.purpose, self.expires_at or 0)


class Files:
    """The files on a volume. All methods block on the disk: call them in threads.

    All methods raise ``VolumeError`` if the volume is missing, full or read-only.

    Args:
        volume: Volume of the files.
        max_mb: Maximum megabytes of a received file.
        retention_days: Days after which a file without an expiry time expires; 0 for never.
        quota: Limits the space and the number of objects on the volume.
    """

    def __init__(self, volume: Volume, *, max_mb: int, retention_days: float, quota: Quota) -> None:
        self.volume = volume
        self.quota = quota
        self.max_bytes = max_mb * MEGABYTE
        self._retention_s = round(retention_days * DAY_S)

    @classmethod
    def from_settings(cls, settings: Settings) -> "Files":
        volume = Volume.from_settings(settings)
        return cls(
            volume,
            max_mb=settings.files_max_mb,
            retention_days=settings.files_retention_days,
            quota=Quota.from_settings(volume, settings),
        )

    @property
    def _root(self) -> Path:
        return self.volume.worker_path("files")

    @property
    def _index(self) -> TimeIndex:
        return TimeIndex(self.volume.worker_path("index/files"))

    def receive(
        self,
        source: Iterable[bytes],
        *,
        filename: str,
        purpose: str = DEFAULT_PURPOSE,
        expires_after_s: int | None = None,
        id: str | None = None,
    ) -> StoredFile:
        """Store a file, or return it if an earlier attempt stored it. A refused file is removed.

        ``source`` has the content in chunks of any size. ``expires_after_s`` is None for the
        operator's default. ``id`` is the same when the request is sent again; None for a new id.
        """
        if id is not None and (existing := self._read_metadata(id)) is not None:
            with translate_os_errors():
                same = existing.path is None and equals_chunks(self.content_path(existing), source)
            return _require_same_file(existing, is_same=same)
        self.quota.check_file_count()
        size, id = 0, id or self.volume.location.new_id(FILE_PREFIX)
        with self.create(id, filename, purpose, expires_after_s) as write:
            for chunk in source:
                size += len(chunk)
                if size > self.max_bytes:
                    raise self.too_large_error()
                write(chunk)
        return self.get(id, include_expired=True)

    def too_large_error(self) -> InputTooLarge:
        """Return the error for a file with more than ``max_bytes``."""
        return InputTooLarge(
            f"The file has more than {self.max_bytes:,} bytes (FILES_MAX_MB): "
            'put it on the volume by other means, and send {"path": "..."}.',
            param="file",
        )

    def add_volume_file(
        self,
        path: str,
        *,
        purpose: str,
        filename: str | None = None,
        expires_after_s: int | None = None,
        id: str | None = None,
    ) -> StoredFile:
        """Create a reference to a caller's file on the volume; that file is never removed.

        ``path`` is relative to the volume's root, absolute, or ``s3://<volume id>/key``;
        ``filename`` is None for its last component. For the others, see ``receive``.
        """
        resolved = self.volume.input_path(path)
        with translate_os_errors():
            key = str(resolved.relative_to(self.volume.root.resolve()))
        if id is not None and (existing := self._read_metadata(id)) is not None:
            return _require_same_file(existing, is_same=existing.path == key)
        if not resolved.is_file():
            where = f"the volume{self.volume.location.as_suffix}"
            raise InvalidInput(f"{path}: there is no such file on {where}")
        with translate_os_errors():
            size = resolved.stat().st_size
        self.quota.check_file_count()
        self.quota.reserve(FILE_OVERHEAD, files=1)
        name = filename or resolved.name
        id = id or self.volume.location.new_id(FILE_PREFIX)
        file = self._make_metadata(id, size, name, purpose, expires_after_s, key)
        with translate_os_errors(), atomic_directory(self._root / id) as folder:
            self._write_metadata(folder, file)
        return file

    @contextlib.contextmanager
    def create(
        self, id: str, filename: str, purpose: str, expires_after_s: int | None = None
    ) -> Iterator[Callable[[bytes], object]]:
        """Yield a function that writes a chunk of a new file; the file appears after the block.

        If the block raises, nothing remains. If another attempt was faster, its file stays. By
        default, the file expires after the operator's retention period.
        """
        self.quota.reserve(FILE_OVERHEAD, files=1)
        reserved = FILE_OVERHEAD

        def write(chunk: bytes) -> None:
            nonlocal reserved
            self.quota.reserve(len(chunk))
            reserved += len(chunk)
            file.write(chunk)

        with contextlib.ExitStack() as on_failure:
            on_failure.callback(lambda: self.quota.release(reserved, files=1))
            with translate_os_errors(), atomic_directory(self._root / id) as folder:
                with (folder / CONTENT).open("xb") as file:
                    yield write
                    size = file.tell()
                metadata = self._make_metadata(id, size, filename, purpose, expires_after_s)
                self._write_metadata(folder, metadata)
            on_failure.pop_all()

    def get(self, id: str, *, include_expired: bool = False) -> StoredFile:
        """Return the metadata of a file; raise ``NoSuchObject`` or ``OnOtherVolume`` without one.

        A file that has expired may not have been removed yet. ``id`` may be any string.
        """
        file = self._read_metadata(id)
        if file is None and ids.is_id(FILE_PREFIX, id):
            self.volume.location.check_name("file", id, "id")
        if file is None or (file.is_expired and not include_expired):
            raise NoSuchObject("There is no file with this id.", param="id")
        return file

    def exists(self, id: str) -> bool:
        """Return whether a file exists, even if it has expired."""
        return self._read_metadata(id) is not None

    def content_path(self, file: StoredFile) -> Path:
        """Return the path of a file's content, which may have been removed: ``NoSuchObject``."""
        own = self._root / file.id / CONTENT
        path = own if file.path is None else self.volume.input_path(file.path)
        if not path.is_file():
            raise NoSuchObject("The content of this file is no longer on the volume.", param="id")
        return path

    def list(
        self,
        *,
        after: str | None = None,
        limit: int = MAX_OBJECTS,
        order: str = "desc",
        purpose: str | None = None,
    ) -> Page[StoredFile]:
        """Return a page of the files that haven't expired.

        ``after`` is the id of the last file on the previous page, ``order`` "desc" for newest first
        or "asc", and ``purpose`` None for any.
        """
        last = None if after is None else self._read_metadata(after)
        if after is not None and last is None:
            raise unknown_position_error(after, self.volume.location)

        def find(entry: IndexEntry) -> StoredFile | None:
            if entry.is_expired or purpose not in {None, entry.tag}:
                return None
            file = self._read_metadata(entry.id)
            # Another attempt at this file may have been faster.
            return file if file is not None and file.index_entry == entry else None

        with translate_os_errors():
            begin = last.index_entry if last else None
            return read_page(self._index.entries(order=order, after=begin), find, limit)

    def delete(self, id: str, *, in_use: Container[str] = ()) -> None:
        """Remove a file, but not a caller's file that it refers to.

        Files that unfinished work reads stay: their ids are ``in_use``.
        """
        file = self.get(id)
        if id in in_use:
            raise Conflict(
                "A batch or a fine-tune that has not ended uses this file: cancel that first."
            )
        self._remove(id, file)
        self.quota.release(FILE_OVERHEAD + (0 if file.path else file.bytes), files=1)

    def sweep(self, in_use: Container[str]) -> int:
        """Remove expired files, and incomplete ones after a day; return how many were removed.

        Files that unfinished work reads stay: their ids are ``in_use``. Files that can't be removed
        stay until the next call.
        """
        with translate_os_errors():
            try:
                # Also the names of incomplete files, and of those that are partly removed.
                names = [path.name for path in self._root.iterdir()]
            except FileNotFoundError:
                names = []
        removed = 0
        entries = []
        for name in names:
            try:
                file = self._read_metadata(name)
                is_removable = self._is_abandoned(name) if file is None else file.is_expired
                if is_removable and name not in in_use:
                    self._remove(name, file)
                    removed += 1
                elif file is not None:
                    entries.append(file.index_entry)
            except VolumeError as error:
                log.warning("%s could not be removed: %s", name, error)
        with translate_os_errors():
            self._index.repair(entries)
        return removed

    def chunks_within_quota(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the chunks of a file for the output directory, and count their bytes."""
        for chunk in chunks:
            self.quota.reserve(len(chunk))
            yield chunk

    def _make_metadata(
        self,
        id: str,
        size: int,
        filename: str,
        purpose: str,
        expires_after_s: int | None,
        path: str | None = None,
    ) -> StoredFile:
        now, lifetime_s = int(time.time()), expires_after_s or self._retention_s
        return StoredFile(
            id=id,
            bytes=size,
            created_at=now,
            filename=filename,
            purpose=purpose,
            expires_at=now + lifetime_s if lifetime_s else None,
            path=path,
        )

    def _write_metadata(self, folder: Path, file: StoredFile) -> None:
        """Write the metadata into a file's new directory, and the file's entry into the index."""
        (folder / METADATA).write_text(file.model_dump_json())
        self._index.add(file.index_entry)

    def _read_metadata(self, id: str) -> StoredFile | None:
        """Return a file's metadata; None if no intact file has the id, which may be any string."""
        if not ids.is_id(FILE_PREFIX, id):
            return None
        with translate_os_errors():
            try:
                return StoredFile.model_validate_json((self._root / id / METADATA).read_bytes())
            except (FileNotFoundError, NotADirectoryError, ValidationError):
                return None

    def _is_abandoned(self, name: str) -> bool:
        """Return whether the last write to a directory was more than ``ABANDONED_S`` ago."""
        folder = self._root / name
        with translate_os_errors():
            try:
                newest = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
            except (FileNotFoundError, NotADirectoryError):
                return False
        return newest < time.time() - ABANDONED_S

    def _remove(self, name: str, file: StoredFile | None) -> None:
        """Remove a directory atomically; ``file`` is its metadata, None without any."""
        with translate_os_errors():
            remove_directory(self._root / name)
            if file is not None:
                self._index.remove(file.index_entry)


def _require_same_file(file: StoredFile, *, is_same: bool) -> StoredFile:
    """Return the file of an earlier attempt if the new attempt has the same file."""
    if not is_same:
        raise Conflict("An earlier job with the same id had another file.")
    return file


def equals_chunks(path: Path, source: Iterable[bytes]) -> bool:
    """Return whether a file contains the same bytes as a source with chunks of any size."""
    with path.open("rb") as file:
        return all(file.read(len(chunk)) == chunk for chunk in source) and not file.read(1)
