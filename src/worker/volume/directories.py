"""Directories that appear and disappear atomically."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

from worker.volume import make_directory, sync_directory


@contextlib.contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield a hidden directory that is renamed to ``path`` after the block.

    Its files are durable by then. If the block raises, the hidden directory is removed. If another
    attempt was faster, the existing directory stays.

    Raises:
        OSError: The directory can't be written.
    """
    hidden = _hidden_path(path)
    try:
        make_directory(hidden)
        yield hidden
        for file in hidden.iterdir():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
        sync_directory(hidden)
        try:
            hidden.rename(path)
        except OSError:
            if not path.is_dir():
                raise
        sync_directory(path.parent)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def remove_directory(path: Path) -> None:
    """Remove a directory atomically if it exists; if the path is a symlink, remove only the link.

    Raises:
        OSError: The directory can't be removed. It may already have a hidden name.
    """
    hidden = _hidden_path(path)
    with contextlib.suppress(FileNotFoundError):
        path.rename(hidden)
        sync_directory(path.parent)
        if hidden.is_symlink():
            hidden.unlink()
        else:
            shutil.rmtree(hidden)


def _hidden_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid4().hex}")
