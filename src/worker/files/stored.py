"""Files as the volume has them: ``worker/files/<id>``, with the content and what it is.

Such a directory appears as a whole, never changes, and disappears by a renaming.
"""

import contextlib
import logging
import time
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from worker.errors import VolumeError
from worker.validation import Strict
from worker.volume import Volume, failures, ids
from worker.volume.directories import appear, vanish

log = logging.getLogger(__name__)

PREFIX = "file-"
CONTENT, META = "content", "meta.json"
# Seconds after which what nobody has written to is given up.
ABANDONED_S = 86_400

# What callers may upload a file for. Results of the worker's own have others: "batch_output".
Purpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]
# Of a file that is uploaded without one.
PURPOSE: Purpose = "fine-tune"


class StoredFile(Strict):
    """A file that exists: its content is complete, and never changes.

    Args:
        id: ``file-`` and 24 letters and digits.
        bytes: of its content.
        created_at: seconds since 1970.
        filename: what its caller calls it, which names nothing on the disk.
        purpose: what it is for, in OpenAI's words.
        expires_at: seconds since 1970; None: never.
        path: where its content lies on the volume, if it is a caller's own file; never shown.
    """

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None
    path: str | None = None

    @property
    def expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= time.time()


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

    @contextlib.contextmanager
    def new(self, id: str) -> Iterator[Path]:
        """Yield a directory for the content and ``META``, which is the file after the block.

        An exception leaves nothing of it, and one that another attempt has written stays.
        """
        with failures(), appear(self.root / id) as folder:
            yield folder

    def remove(self, name: str) -> None:
        """Remove a directory, at once for all who look for it."""
        with failures():
            vanish(self.root / name)

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
