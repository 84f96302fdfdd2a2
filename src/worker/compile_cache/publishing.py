"""Packs directories into an archive on the volume: a program of its own.

It is run as a file, by an interpreter without packages and with the lowest priority, while the
worker answers jobs. All the time it holds the archive's partial file, which only one worker can
create. A rename at the end makes the archive appear whole or not at all.
"""

import contextlib
import os
import signal
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

SUFFIX = ".tar.gz"
_PARTIAL = ".partial"

# Age at which a partial file counts as abandoned by its worker.
ABANDONED_S = 3600.0
# Longest time for packing: a worker may be frozen for hours, while another takes its partial file.
LONGEST_S = ABANDONED_S / 2
# Age at which an archive that no worker uses is deleted.
UNUSED_S = 30 * 86_400.0
LEAST_PRIORITY = 19


class Stopped(Exception):
    """The archive was not published, which is no failure."""


def publish(archive: Path, folder: Path, parts: Sequence[str]) -> int:
    """Publish an archive, and return its size in bytes; 0 if there is nothing to publish.

    Args:
        archive: the file on the volume.
        folder: what the names in the archive are relative to.
        parts: the directories in it to pack.

    Raises:
        Stopped: the archive exists, or another worker is making it.
        OSError: the volume can't be written to, or is full.
    """
    files = [path for part in parts for path in sorted((folder / part).rglob("*"))]
    if not any(path.is_file() for path in files):
        return 0
    archive.parent.mkdir(exist_ok=True)
    _clean(archive.parent)
    with _partial(archive) as (path, file):
        begun = time.time()
        _pack(file, folder, files)
        file.flush()
        # A full network disk may raise an error only now.
        os.fsync(file.fileno())
        if time.time() - begun > LONGEST_S:
            raise Stopped("it took so long that another worker may have begun it anew")
        size = path.stat().st_size
        path.rename(archive)
    return size


@contextlib.contextmanager
def _partial(archive: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """Create the archive's partial file, which only one worker can, and remove it at the end.

    Raises:
        Stopped: the archive exists, or another worker is making it.
    """
    path = archive.with_name(archive.name + _PARTIAL)
    try:
        file = path.open("xb")
    except FileExistsError:
        raise Stopped("another worker is publishing it") from None
    try:
        with file:
            # Checked while holding the partial file: no other worker can publish it now.
            if archive.exists():
                raise Stopped("another worker has published it")
            yield path, file
    finally:
        path.unlink(missing_ok=True)


def _pack(file: BinaryIO, folder: Path, files: Sequence[Path]) -> None:
    # Compressed for the checksum, which reveals a damaged archive, more than for the size.
    with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as packed:
        for path in files:
            # Compilers may delete temporary files meanwhile.
            with contextlib.suppress(FileNotFoundError):
                packed.add(path, path.relative_to(folder), recursive=False)


def _clean(shared: Path) -> None:
    """Remove partial files of killed workers, and archives that are no longer used."""
    now = time.time()
    for pattern, longest in ((f"*{_PARTIAL}", ABANDONED_S), (f"*{SUFFIX}", UNUSED_S)):
        for path in shared.glob(pattern):
            # Another worker may be cleaning, too, and a failure here does no harm.
            with contextlib.suppress(OSError):
                if now - path.stat().st_mtime > longest:
                    path.unlink()


def main(words: Sequence[str]) -> int:
    """Run ``publish`` with command line words for its parameters; return the exit status."""
    archive, folder, *parts = words
    os.nice(LEAST_PRIORITY)
    # It comes when the worker ends: the partial file is removed on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    begun = time.monotonic()
    try:
        size = publish(Path(archive), Path(folder), parts)
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
