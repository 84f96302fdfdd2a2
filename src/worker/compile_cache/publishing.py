"""Packs directories into an archive on the volume, once for all workers: a program of its own.

It is run as a file, by an interpreter without packages and with the least priority, beside a worker
that is answering jobs. For its whole work it holds the archive's partial file, which one worker
alone can create; a rename, by which the archive appears whole or not at all, ends it.
"""

import contextlib
import os
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

SUFFIX = ".tar.gz"
_PARTIAL = ".partial"

# A partial file that was not written to for so long has lost its owner.
ABANDONED_S = 3600.0
# A worker may be frozen at any moment and thaw hours later, when its partial file is another's.
LONGEST_S = ABANDONED_S / 2
# An archive that no worker has used for so long is of settings or releases that are gone.
UNUSED_S = 30 * 86_400.0
LEAST_PRIORITY = 19


class Stopped(Exception):
    """The archive was not published, for a reason that is no failure."""


def publish(worker: int, archive: Path, folder: Path, parts: Sequence[str]) -> int:
    """Publish an archive, and return its size in bytes; 0, where there is nothing to publish.

    Args:
        worker: the process that this one is to end with.
        archive: the file on the volume.
        folder: what the names in the archive are relative to.
        parts: the directories below it that are packed.

    Raises:
        Stopped: the archive is there, or another worker is making it.
        OSError: the volume can't be written to, or is full.
    """
    files = [path for part in parts for path in sorted((folder / part).rglob("*"))]
    if not any(path.is_file() for path in files):
        return 0
    archive.parent.mkdir(exist_ok=True)
    _clean(archive.parent)
    with _partial(archive) as (path, file):
        begun = time.time()
        _pack(worker, file, folder, files)
        file.flush()
        # A full network disk may say so only now.
        os.fsync(file.fileno())
        if time.time() - begun > LONGEST_S:
            raise Stopped("it took so long that another worker may have begun it anew")
        size = path.stat().st_size
        path.rename(archive)
    return size


@contextlib.contextmanager
def _partial(archive: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """Create the archive's partial file, which no two workers can; leave none behind.

    Raises:
        Stopped: the archive is there, or another worker is making it.
    """
    path = archive.with_name(archive.name + _PARTIAL)
    try:
        file = path.open("xb")
    except FileExistsError:
        raise Stopped("another worker is publishing it") from None
    try:
        with file:
            # Only now is it certain that nobody else is about to put it there.
            if archive.exists():
                raise Stopped("another worker has published it")
            yield path, file
    finally:
        path.unlink(missing_ok=True)


def _pack(worker: int, file: BinaryIO, folder: Path, files: Sequence[Path]) -> None:
    # Compressed less for its size than for the checksum, which tells a damaged archive.
    with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as packed:
        for path in files:
            if os.getppid() != worker:
                raise Stopped("the worker has ended")
            # Compilers go on working, and take away what they have no more need of.
            with contextlib.suppress(FileNotFoundError):
                packed.add(path, path.relative_to(folder), recursive=False)


def _clean(shared: Path) -> None:
    """Remove what workers left that were killed, and archives that none uses any more."""
    now = time.time()
    for pattern, longest in ((f"*{_PARTIAL}", ABANDONED_S), (f"*{SUFFIX}", UNUSED_S)):
        for path in shared.glob(pattern):
            # Another worker may be cleaning, too; and it is not what this one is here for.
            with contextlib.suppress(OSError):
                if now - path.stat().st_mtime > longest:
                    path.unlink()


def main(words: Sequence[str]) -> int:
    """Publish what the words name: the worker's process, the archive, the folder, the parts."""
    worker, archive, folder, *parts = words
    os.nice(LEAST_PRIORITY)
    begun = time.monotonic()
    try:
        size = publish(int(worker), Path(archive), Path(folder), parts)
    except Stopped as stopped:
        sys.stdout.write(f"not published: {stopped}")
        return 0
    except OSError as error:
        sys.stdout.write(f"can't be published: {error.strerror or error}")
        return 1
    if size:
        seconds = time.monotonic() - begun
        sys.stdout.write(f"published, {size / 1e6:.1f} MB in {seconds:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
