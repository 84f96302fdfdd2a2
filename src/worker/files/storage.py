"""Directories of files on the volume: ``worker/files/<id>``, with content and metadata.

Each directory appears and disappears atomically, and never changes.
"""

import contextlib
import logging
import time
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from worker.errors import VolumeError
from worker.validation import StrictModel
from worker.volume import Volume, ids, translate_os_errors
from worker.volume.durable import atomic_directory, remove_directory
from worker.volume.pages import IndexEntry, Page, TimeIndex, read_page

log = logging.getLogger(__name__)

FILE_PREFIX = "file-"
CONTENT, METADATA = "content", "meta.json"
# Seconds after the last write until an incomplete file counts as abandoned.
ABANDONED_S = 86_400

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


class FileDirectories:
    """The directories of all files on a volume. All methods raise ``VolumeError`` on failure."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume

    @property
    def root(self) -> Path:
        return self._volume.worker_path("files")

    @property
    def _index(self) -> TimeIndex:
        return TimeIndex(self._volume.worker_path("index/files"))

    def read_metadata(self, id: str) -> StoredFile | None:
        """Return a file's metadata; None if no intact file has the id, which may be any string."""
        if not ids.is_id(FILE_PREFIX, id):
            return None
        with translate_os_errors():
            try:
                return StoredFile.model_validate_json((self.root / id / METADATA).read_bytes())
            except (FileNotFoundError, NotADirectoryError, ValidationError):
                return None

    def all_names(self) -> list[str]:
        """Return the names of all directories, including incomplete and partly removed ones."""
        with translate_os_errors():
            try:
                return [path.name for path in self.root.iterdir()]
            except FileNotFoundError:
                return []

    def list(
        self, *, after: StoredFile | None, limit: int, order: str, purpose: str | None
    ) -> Page[StoredFile]:
        """Return a page of the files that haven't expired."""

        def find(entry: IndexEntry) -> StoredFile | None:
            if entry.is_expired or purpose not in {None, entry.tag}:
                return None
            file = self.read_metadata(entry.id)
            # Another attempt at this file may have been faster.
            return file if file is not None and file.index_entry == entry else None

        with translate_os_errors():
            begin = after.index_entry if after else None
            return read_page(self._index.entries(order=order, after=begin), find, limit)

    @contextlib.contextmanager
    def create(self, id: str) -> Iterator[Path]:
        """Yield a directory for ``CONTENT``, and for ``write_metadata``; after the block it exists.

        If the block raises, nothing remains. If another attempt was faster, its directory stays.
        """
        with translate_os_errors(), atomic_directory(self.root / id) as folder:
            yield folder

    def write_metadata(self, folder: Path, file: StoredFile) -> None:
        """Write the metadata into a file's new directory, and the file's entry into the index."""
        (folder / METADATA).write_text(file.model_dump_json())
        self._index.add(file.index_entry)

    def remove(self, name: str, file: StoredFile | None) -> None:
        """Remove a directory atomically; ``file`` is its metadata, None without any."""
        with translate_os_errors():
            remove_directory(self.root / name)
            if file is not None:
                self._index.remove(file.index_entry)

    def sweep(self, in_use: Container[str]) -> int:
        """See ``Files.sweep``."""
        removed = 0
        entries = []
        for name in self.all_names():
            try:
                file = self.read_metadata(name)
                if name not in in_use and self._is_removable(name, file):
                    self.remove(name, file)
                    removed += 1
                elif file is not None:
                    entries.append(file.index_entry)
            except VolumeError as error:
                log.warning("%s could not be removed: %s", name, error)
        with translate_os_errors():
            self._index.repair(entries)
        return removed

    def _is_removable(self, name: str, file: StoredFile | None) -> bool:
        return self.is_abandoned(name) if file is None else file.is_expired

    def is_abandoned(self, name: str) -> bool:
        """Return whether the last write to a directory was more than ``ABANDONED_S`` ago."""
        folder = self.root / name
        with translate_os_errors():
            try:
                newest = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
            except (FileNotFoundError, NotADirectoryError):
                return False
        return newest < time.time() - ABANDONED_S


def equals_chunks(path: Path, source: Iterable[bytes]) -> bool:
    """Return whether a file contains the same bytes as a source with chunks of any size.

    Raises:
        OSError: The file can't be read.
    """
    with path.open("rb") as file:
        return all(file.read(len(chunk)) == chunk for chunk in source) and not file.read(1)
