"""Directories that appear under their names when they are whole, and disappear at once."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

from worker.volume import make_directory, sync_directory


@contextlib.contextmanager
def appear(place: Path) -> Iterator[Path]:
    """Yield a hidden directory for files, which gets its name when the block ends.

    Its files are durable by then. An exception leaves nothing of it. If another attempt was faster,
    the directory that has the name stays.

    Raises:
        OSError: it can't be written.
    """
    hidden = _hidden(place)
    try:
        make_directory(hidden)
        yield hidden
        for file in hidden.iterdir():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
        sync_directory(hidden)
        try:
            hidden.rename(place)
        except OSError:
            if not place.is_dir():
                raise
        sync_directory(place.parent)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def vanish(place: Path) -> None:
    """Remove a directory, at once for all who look for it; of a link only the link.

    Raises:
        OSError: it can't be removed. It may be only hidden then.
    """
    hidden = _hidden(place)
    with contextlib.suppress(FileNotFoundError):
        place.rename(hidden)
        sync_directory(place.parent)
        if hidden.is_symlink():
            hidden.unlink()
        else:
            shutil.rmtree(hidden)


def _hidden(place: Path) -> Path:
    return place.with_name(f".{place.name}.{uuid4().hex}")
