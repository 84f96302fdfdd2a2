"""Files on the volume: received, written or referred to, listed, and removed when they expire."""

import contextlib
import time
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path

from worker.errors import Conflict, InputTooLarge, InvalidInput, NoSuchObject
from worker.files.quota import MEGABYTE, Quota
from worker.files.stored import CONTENT, META, PREFIX, PURPOSE, Folders, StoredFile, holds
from worker.settings import Settings
from worker.volume import Volume, failures, ids
from worker.volume.pages import LARGEST, Page, page

__all__ = ["MEGABYTE", "PREFIX", "Files", "StoredFile"]

DAY_S = 86_400


class Files:
    """The files on a volume. All methods wait for the disk: they are for threads.

    All of them raise ``VolumeError`` if the volume is missing, full or read-only.

    Args:
        volume: where they are.
        max_mb: megabytes of one that is received.
        max_total_mb: megabytes of all, with the outputs of batches.
        retention_days: after which a file expires that says nothing else; 0: never.
    """

    def __init__(
        self,
        volume: Volume,
        *,
        max_mb: int,
        max_total_mb: int = Settings.model_fields["files_max_total_mb"].default,
        retention_days: float,
    ) -> None:
        self.volume = volume
        self._folders = Folders(volume)
        self._quota = Quota(volume, max_total_mb * MEGABYTE)
        self.max_bytes = max_mb * MEGABYTE
        self._retention_s = round(retention_days * DAY_S)

    @classmethod
    def of(cls, settings: Settings) -> "Files":
        return cls(
            Volume.of(settings),
            max_mb=settings.files_max_mb,
            max_total_mb=settings.files_max_total_mb,
            retention_days=settings.files_retention_days,
        )

    def receive(
        self,
        source: Iterable[bytes],
        *,
        filename: str,
        purpose: str = PURPOSE,
        expires_after_s: int | None = None,
        id: str | None = None,
    ) -> StoredFile:
        """Write a caller's file; nothing is left of one that is refused.

        Args:
            source: its content, in parts of any size.
            filename: what the caller calls it.
            purpose: what it is for, in OpenAI's words.
            expires_after_s: seconds; None: what the operator has set.
            id: what it will have, where a retry must find it; None: a new one.

        Raises:
            Conflict: what has this id is another file.
            InputTooLarge: it has more than ``max_mb``.
        """
        if id is not None and (found := self._folders.read(id)) is not None:
            with failures():
                same = found.path is None and holds(self.content(found), source)
            return _expected(found, same=same)
        size, id = 0, id or ids.new(PREFIX)
        with self.writing(id, filename, purpose, expires_after_s) as write:
            for part in source:
                size += len(part)
                if size > self.max_bytes:
                    raise self.too_large()
                write(part)
        return self.get(id, expired=True)

    def too_large(self) -> InputTooLarge:
        """Return the error for a file that is."""
        return InputTooLarge(
            f"The file has more than {self.max_bytes:,} bytes (FILES_MAX_MB): "
            'put it on the volume by other means, and send {"path": "..."}.',
            param="file",
        )

    def refer(
        self,
        path: str,
        *,
        purpose: str,
        filename: str | None = None,
        expires_after_s: int | None = None,
        id: str | None = None,
    ) -> StoredFile:
        """Make a file of one that a caller has put on the volume; there it stays, also afterwards.

        Args:
            path: relative to the volume's root, or as ``s3://<volume's id>/key``.
            purpose: what it is for, in OpenAI's words.
            filename: what the caller calls it; None: the last part of the path.
            expires_after_s: seconds; None: what the operator has set.
            id: as in ``receive``.

        Raises:
            Conflict: what has this id is another file.
            InvalidInput: the path leads to no file, or not to one for callers.
        """
        place = self.volume.input(path)
        with failures():
            key = str(place.relative_to(self.volume.root.resolve()))
        if id is not None and (found := self._folders.read(id)) is not None:
            return _expected(found, same=found.path == key)
        if not place.is_file():
            raise InvalidInput(f"{path}: there is no such file on the volume")
        with failures():
            size = place.stat().st_size
        self._quota.take(0)
        name, id = filename or place.name, id or ids.new(PREFIX)
        new = self._described(id, size, name, purpose, expires_after_s, key)
        with self._folders.new(id) as folder:
            _describe(folder, new)
        return new

    def get(self, id: str, *, expired: bool = False) -> StoredFile:
        """Return a file.

        Args:
            id: its id, or any text.
            expired: whether one that has expired, and is still there, is found.

        Raises:
            NoSuchObject: there is none.
        """
        found = self._folders.read(id)
        if found is None or (found.expired and not expired):
            raise NoSuchObject("There is no file with this id.", param="id")
        return found

    def has(self, id: str) -> bool:
        """Return whether there is a file, also one that has expired."""
        return self._folders.read(id) is not None

    def content(self, file: StoredFile) -> Path:
        """Return where a file's bytes are.

        Raises:
            NoSuchObject: its caller, whose file it was, has removed it.
        """
        own = file.path is None
        place = (
            self._folders.root / file.id / CONTENT if own else self.volume.input(file.path or "")
        )
        if not place.is_file():
            raise NoSuchObject("The content of this file is no longer on the volume.", param="id")
        return place

    def list(
        self,
        *,
        after: str | None = None,
        limit: int = LARGEST,
        order: str = "desc",
        purpose: str | None = None,
    ) -> Page[StoredFile]:
        """Return a page of the files that have not expired; see ``volume.pages.page``."""
        found = (
            one
            for one in map(self._folders.read, self._folders.names())
            if one is not None and not one.expired and purpose in {None, one.purpose}
        )
        return page(found, after=after, limit=limit, order=order)

    def delete(self, id: str, *, in_use: Container[str] = ()) -> None:
        """Remove a file; where it refers to a caller's own, that one stays.

        Args:
            id: its id.
            in_use: ids of files that are needed.

        Raises:
            NoSuchObject: there is none.
            Conflict: it is in use.
        """
        self.get(id)
        if id in in_use:
            raise Conflict(
                "A batch or a fine-tune that has not ended uses this file: cancel that first."
            )
        self._folders.remove(id)
        self._quota.forget()

    def counted(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the parts of another file that counts together with these.

        Raises:
            VolumeError: there is no room for them.
        """
        for part in parts:
            self._quota.take(len(part))
            yield part

    @contextlib.contextmanager
    def writing(
        self, id: str, filename: str, purpose: str, expires_after_s: int | None = None
    ) -> Iterator[Callable[[bytes], object]]:
        """Yield what writes a part of a file, which exists when the block ends.

        An exception leaves nothing of it. If another attempt was faster, its file stays.

        Args:
            id: what it will have.
            filename: what it is called.
            purpose: what it is for, in OpenAI's words.
            expires_after_s: seconds; None: what the operator has set.
        """
        self._quota.take(0)
        with self._folders.new(id) as folder:
            with (folder / CONTENT).open("xb") as opened:

                def write(part: bytes) -> None:
                    self._quota.take(len(part))
                    opened.write(part)

                yield write
                size = opened.tell()
            _describe(folder, self._described(id, size, filename, purpose, expires_after_s))

    def sweep(self, in_use: Container[str]) -> int:
        """Remove files that have expired, and what was left half-written for a day.

        What the volume fails at stays until the next time.

        Args:
            in_use: ids of files that are needed.

        Returns:
            How many were removed.
        """
        return self._folders.sweep(in_use)

    def _described(
        self,
        id: str,
        size: int,
        filename: str,
        purpose: str,
        expires_after_s: int | None,
        path: str | None = None,
    ) -> StoredFile:
        now, lasts_s = int(time.time()), expires_after_s or self._retention_s
        return StoredFile(
            id=id,
            bytes=size,
            created_at=now,
            filename=filename,
            purpose=purpose,
            expires_at=now + lasts_s if lasts_s else None,
            path=path,
        )


def _expected(found: StoredFile, *, same: bool) -> StoredFile:
    """Return the file that an earlier attempt has left, if it is the same.

    Raises:
        Conflict: it is not.
    """
    if not same:
        raise Conflict("A job with the same id came before, with another file.")
    return found


def _describe(folder: Path, file: StoredFile) -> None:
    (folder / META).write_text(file.model_dump_json())
