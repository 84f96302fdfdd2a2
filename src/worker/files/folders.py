"""The directories that files are kept in: ``worker/files/<id>``, with the content and what it is.

The latter, ``meta.json``, is written last: without it there is no file. Nothing of a file ever
changes; it disappears by a renaming.
"""

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Container, Iterable
from pathlib import Path
from uuid import uuid4

from pydantic import ValidationError

from worker.errors import VolumeError
from worker.files.stored import StoredFile
from worker.volume import Volume, failures, ids, make_directory, sync_directory, write

log = logging.getLogger(__name__)

PREFIX = "file-"
CONTENT, META = "content", "meta.json"
# Seconds after which what nobody has written to is given up.
ABANDONED_S = 86_400


class Folders:
    """The directories on a volume. All methods raise ``VolumeError`` if it fails."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume

    @property
    def root(self) -> Path:
        return self._volume.directory("files")

    def read(self, id: str) -> StoredFile | None:
        """Return what is known of a file; None: there is none, whatever the text is."""
        if not ids.fits(PREFIX, id):
            return None
        with failures():
            try:
                return StoredFile.model_validate_json((self.root / id / META).read_bytes())
            except (FileNotFoundError, NotADirectoryError, ValidationError):
                return None

    def names(self) -> list[str]:
        """Return the names of all directories, also of what is half-written or half-removed."""
        with failures():
            try:
                return [place.name for place in self.root.iterdir()]
            except FileNotFoundError:
                return []

    def begin(self, id: str) -> Path:
        """Return where an attempt to write a file puts its content: no other attempt does."""
        folder = self.root / id
        make_directory(folder)
        return folder / f".{CONTENT}.{uuid4().hex}"

    def publish(self, new: StoredFile, written: Path | None = None) -> None:
        """Make a file exist; nothing is left of one that can't.

        Args:
            new: what it is.
            written: where its content is; None: the content is a caller's own file.
        """
        folder = self.root / new.id
        with failures():
            try:
                if written is not None:
                    _put(written, folder / CONTENT)
                write(folder / META, new.model_dump_json().encode())
                sync_directory(self.root)
            except OSError:
                if self.read(new.id) is None:
                    self.discard(folder / CONTENT)
                raise

    def discard(self, written: Path) -> None:
        """Remove what an attempt has written, but nothing of another one."""
        with contextlib.suppress(OSError):
            written.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            written.parent.rmdir()

    def remove(self, name: str) -> None:
        """Remove a directory, at once for all who look for it."""
        with failures():
            gone = self.root / f".removed.{uuid4().hex}"
            with contextlib.suppress(FileNotFoundError):
                (self.root / name).rename(gone)
                sync_directory(self.root)
                shutil.rmtree(gone)

    def sweep(self, in_use: Container[str]) -> int:
        """See ``Files.sweep``."""
        removed = 0
        for name in self.names():
            try:
                removed += name not in in_use and self._swept(name)
            except VolumeError as error:
                log.warning("%s could not be removed: %s", name, error)
        return removed

    def _swept(self, name: str) -> bool:
        found = self.read(name)
        over = self.abandoned(name) if found is None else found.expired
        if over:
            self.remove(name)
        return over

    def abandoned(self, name: str) -> bool:
        """Return whether nobody has written to a directory for long."""
        folder = self.root / name
        with failures():
            try:
                newest = max(place.stat().st_mtime for place in (folder, *folder.iterdir()))
            except (FileNotFoundError, NotADirectoryError):
                return False
        return newest < time.time() - ABANDONED_S


def holds(content: Path, source: Iterable[bytes]) -> bool:
    """Return whether a content is what a source gives, in parts of any size.

    Raises:
        OSError: it can't be read.
    """
    with content.open("rb") as opened:
        return all(opened.read(len(part)) == part for part in source) and not opened.read(1)


def _put(written: Path, content: Path) -> None:
    """Give a content its name, unless another attempt has: what is there may be in use."""
    try:
        os.link(written, content)
    except OSError:
        # It is there, whole or in part, or the disk has no links.
        with contextlib.suppress(FileNotFoundError):
            if content.stat().st_size == written.stat().st_size:
                written.unlink()
                return
        written.replace(content)
    else:
        written.unlink()
