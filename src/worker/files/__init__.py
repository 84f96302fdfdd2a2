"""Files of callers and of the worker on the volume: creates, lists and removes them."""

import contextlib
import time
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path

from worker.errors import Conflict, InputTooLarge, InvalidInput, NoSuchObject
from worker.files.quota import FILE_OVERHEAD, MEGABYTE, Quota
from worker.files.storage import (
    CONTENT,
    DEFAULT_PURPOSE,
    FILE_PREFIX,
    FileDirectories,
    StoredFile,
    equals_chunks,
)
from worker.settings import Settings
from worker.volume import Volume, ids, translate_os_errors
from worker.volume.pages import MAX_OBJECTS, Page, unknown_position_error

__all__ = ["FILE_PREFIX", "MEGABYTE", "Files", "StoredFile"]

DAY_S = 86_400


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
        self._directories = FileDirectories(volume)
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

        Args:
            source: Content, in chunks of any size.
            filename: Name that the caller gives to the file.
            purpose: Purpose as in OpenAI's API.
            expires_after_s: Seconds until the file expires; None for the operator's default.
            id: Id that is the same when the request is sent again; None for a new id.

        Raises:
            Conflict: Another file has this id.
            InputTooLarge: The file has more than ``max_mb`` megabytes.
        """
        if id is not None and (existing := self._directories.read_metadata(id)) is not None:
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

        Args:
            path: Path relative to the volume's root, absolute path, or ``s3://<volume id>/key``.
            purpose: Purpose as in OpenAI's API.
            filename: Name that the caller gives to the file; None for the path's last component.
            expires_after_s: Seconds until the file expires; None for the operator's default.
            id: Id that is the same when the request is sent again; None for a new id.

        Raises:
            Conflict: Another file has this id.
            InvalidInput: The path doesn't lead to a file that callers may name.
        """
        resolved = self.volume.input_path(path)
        with translate_os_errors():
            key = str(resolved.relative_to(self.volume.root.resolve()))
        if id is not None and (existing := self._directories.read_metadata(id)) is not None:
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
        with self._directories.create(id) as folder:
            self._directories.write_metadata(folder, file)
        return file

    def get(self, id: str, *, include_expired: bool = False) -> StoredFile:
        """Return the metadata of a file.

        Args:
            id: Any string.
            include_expired: Whether to return a file that has expired, but was not yet removed.

        Raises:
            NoSuchObject: No file has this id.
            OnOtherVolume: The file is on another volume.
        """
        file = self._directories.read_metadata(id)
        if file is None and ids.is_id(FILE_PREFIX, id):
            self.volume.location.check_name("file", id, "id")
        if file is None or (file.is_expired and not include_expired):
            raise NoSuchObject("There is no file with this id.", param="id")
        return file

    def exists(self, id: str) -> bool:
        """Return whether a file exists, even if it has expired."""
        return self._directories.read_metadata(id) is not None

    def content_path(self, file: StoredFile) -> Path:
        """Return the path of a file's content.

        Raises:
            InvalidInput: The file refers to a path that callers may no longer name.
            NoSuchObject: The file was removed, or the caller's file that it refers to.
        """
        is_owned = file.path is None
        path = (
            self._directories.root / file.id / CONTENT
            if is_owned
            else self.volume.input_path(file.path or "")
        )
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

        Args:
            after: Id of the last file on the previous page; None for the first page.
            limit: Maximum number of files on the page, from 1 to ``MAX_OBJECTS``.
            order: "desc" for newest first, "asc" for oldest first.
            purpose: Purpose of the files; None for any.

        Raises:
            NoSuchObject: No file has the id ``after``.
            OnOtherVolume: The file ``after`` is on another volume.
        """
        last = None if after is None else self._directories.read_metadata(after)
        if after is not None and last is None:
            raise unknown_position_error(after, self.volume.location)
        return self._directories.list(after=last, limit=limit, order=order, purpose=purpose)

    def delete(self, id: str, *, in_use: Container[str] = ()) -> None:
        """Remove a file, but not a caller's file that it refers to.

        Args:
            id: Id of the file.
            in_use: Ids of files that unfinished work reads.

        Raises:
            NoSuchObject: No file has this id.
            Conflict: The file is in use.
        """
        file = self.get(id)
        if id in in_use:
            raise Conflict(
                "A batch or a fine-tune that has not ended uses this file: cancel that first."
            )
        self._directories.remove(id, file)
        self.quota.release(FILE_OVERHEAD + (0 if file.path else file.bytes), files=1)

    def chunks_within_quota(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the chunks of a file for the output directory, and count their bytes for the quota.

        Raises:
            VolumeError: The quota or the disk is full.
        """
        for chunk in chunks:
            self.quota.reserve(len(chunk))
            yield chunk

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
            with self._directories.create(id) as folder:
                with (folder / CONTENT).open("xb") as file:
                    yield write
                    size = file.tell()
                metadata = self._make_metadata(id, size, filename, purpose, expires_after_s)
                self._directories.write_metadata(folder, metadata)
            on_failure.pop_all()

    def sweep(self, in_use: Container[str]) -> int:
        """Remove expired files, and incomplete ones after a day; return how many were removed.

        Files that unfinished work reads stay: their ids are ``in_use``. Files that can't be removed
        stay until the next call.
        """
        return self._directories.sweep(in_use)

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


def _require_same_file(file: StoredFile, *, is_same: bool) -> StoredFile:
    """Return the file of an earlier attempt if the new attempt has the same file.

    Raises:
        Conflict: The new attempt has another file.
    """
    if not is_same:
        raise Conflict("An earlier job with the same id had another file.")
    return file
