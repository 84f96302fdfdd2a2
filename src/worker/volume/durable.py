"""Writes files and directories that appear complete and durable, or not at all.

Each is written under a hidden name, made durable, and renamed. This module is light to import: the
process that trains uses it, too.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path
from uuid import uuid4

from worker.volume import WORKER_DIRECTORY


def write_file(path: Path, content: bytes) -> None:
    """Write or replace a small file atomically: readers see either the old or the new content."""
    write_chunks(path, (content,))


def write_chunks(path: Path, parts: Iterable[bytes]) -> None:
    """Write or replace a file of any size from chunks, atomically like ``write_file``."""
    with _temporary_file(path, parts) as temporary:
        temporary.replace(path)
    sync_directory(path.parent)


def write_once(path: Path, content: bytes) -> bool:
    """Write a small file unless it exists; return whether it was written."""
    if path.exists():
        return False
    with _temporary_file(path, (content,)) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            # Some network disks have no hard links. There, two workers may both write the file, and
            # the later content stays.
            if error.errno not in {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}:
                raise
            temporary.replace(path)
    sync_directory(path.parent)
    return True


@contextlib.contextmanager
def _temporary_file(path: Path, parts: Iterable[bytes]) -> Iterator[Path]:
    """Write a durable file next to ``path`` and yield its path; remove it unless it was renamed."""
    make_directory(path.parent)
    temporary = _hidden_path(path)
    try:
        with temporary.open("xb") as opened:
            opened.writelines(parts)
            opened.flush()
            os.fsync(opened.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield a hidden directory for files; after the block, ``publish_directory`` renames it.

    If the block raises, nothing remains.
    """
    hidden = _hidden_path(path)
    try:
        make_directory(hidden)
        yield hidden
        publish_directory(hidden, path)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def publish_directory(source: Path, destination: Path) -> None:
    """Make a directory of files durable and rename it, or remove it if the destination exists."""
    for file in source.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    sync_directory(source)
    make_directory(destination.parent)
    try:
        source.rename(destination)
    except OSError:
        # Another attempt was faster, unless a file has the name.
        if not destination.is_dir():
            raise
        shutil.rmtree(source, ignore_errors=True)
    sync_directory(destination.parent)
    # The destination may be the first one in its directory.
    sync_directory(destination.parent.parent)


def remove_directory(path: Path) -> None:
    """Remove a directory atomically if it exists; if the path is a symlink, remove only the link.

    After an error, it may already have a hidden name.
    """
    hidden = _hidden_path(path)
    with contextlib.suppress(FileNotFoundError):
        path.rename(hidden)
        sync_directory(path.parent)
        if hidden.is_symlink():
            hidden.unlink()
        else:
            shutil.rmtree(hidden)


def make_directory(directory: Path) -> None:
    """Create a directory and its parents; only this user may access ``WORKER_DIRECTORY``."""
    for parent in (directory, *directory.parents):
        if parent.name == WORKER_DIRECTORY and not parent.exists():
            parent.parent.mkdir(parents=True, exist_ok=True)
            parent.mkdir(mode=0o700, exist_ok=True)
    directory.mkdir(parents=True, exist_ok=True)


def write_durably(file: FileIO, content: bytes | bytearray) -> None:
    """Write the whole content to an unbuffered file and make it durable.

    An error may leave a part of it.
    """
    remaining = memoryview(content)
    while remaining:
        # If the disk gets full, a call may write only a part; then the next call raises the error.
        remaining = remaining[file.write(remaining) or 0 :]
    os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Make the entries of a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _hidden_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid4().hex}")
