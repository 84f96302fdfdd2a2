"""Packs directories into an archive on the volume, as a separate program.

The program runs without installed packages and with the lowest priority, while the worker answers
jobs. Until it exits, it owns the archive's partial file, which only one worker can create. A rename
at the end makes the archive appear atomically.
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

# Age in seconds at which a partial file counts as abandoned by its worker.
ABANDONED_S = 3600.0
# Maximum seconds for packing, after which the archive is not published. The worker may have been
# frozen for hours, while another worker has removed its partial file as abandoned.
MAX_PACKING_S = ABANDONED_S / 2
# Age in seconds at which an unused archive is deleted.
UNUSED_S = 30 * 86_400.0
LOWEST_PRIORITY = 19


class NotPublished(Exception):
    """Another worker publishes or has published the archive, or packing takes too long."""


def publish_archive(archive: Path, folder: Path, parts: Sequence[str]) -> int:
    """Pack ``parts`` of a folder; return the archive's size in bytes, 0 if they have no files."""
    files = [file for part in parts for file in sorted((folder / part).rglob("*"))]
    if not any(file.is_file() for file in files):
        return 0
    archive.parent.mkdir(exist_ok=True)
    _remove_unused_files(archive.parent)
    with _partial_file(archive) as (path, file):
        started_at = time.time()
        # Compressed mainly for the checksum, which reveals a damaged archive.
        with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as packed:
            for source in files:
                # Compilers may delete temporary files meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    packed.add(source, source.relative_to(folder), recursive=False)
        file.flush()
        # A full network disk may raise an error only at this point.
        os.fsync(file.fileno())
        if time.time() - started_at > MAX_PACKING_S:
            raise NotPublished("it took so long that another worker may have started over")
        size = path.stat().st_size
        path.rename(archive)
    return size


@contextlib.contextmanager
def _partial_file(archive: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """Create the archive's partial file, which only one worker can; remove it after the block."""
    path = archive.with_name(archive.name + _PARTIAL)
    try:
        file = path.open("xb")
    except FileExistsError:
        raise NotPublished("another worker is publishing it") from None
    try:
        with file:
            # Checked while the partial file exists: no other worker can publish the archive now.
            if archive.exists():
                raise NotPublished("another worker has published it")
            yield path, file
    finally:
        path.unlink(missing_ok=True)


def _remove_unused_files(shared: Path) -> None:
    """Remove partial files of killed workers, and archives that are no longer used."""
    now = time.time()
    for pattern, max_age_s in ((f"*{_PARTIAL}", ABANDONED_S), (f"*{SUFFIX}", UNUSED_S)):
        for path in shared.glob(pattern):
            # Another worker may be cleaning up, too, and a failure here does no harm.
            with contextlib.suppress(OSError):
                if now - path.stat().st_mtime > max_age_s:
                    path.unlink()


def main(arguments: Sequence[str]) -> int:
    archive, folder, *parts = arguments
    os.nice(LOWEST_PRIORITY)
    # The worker sends SIGTERM when it exits: ``sys.exit`` lets ``publish`` remove the partial file.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    started_at = time.monotonic()
    try:
        size = publish_archive(Path(archive), Path(folder), parts)
    except NotPublished as reason:
        sys.stdout.write(f"not published: {reason}")
        return 0
    except OSError as error:
        sys.stdout.write(f"can't be published: {error.strerror or error}")
        return 1
    if size:
        seconds = time.monotonic() - started_at
        sys.stdout.write(f"published, {size / 1e6:.1f} MB in {seconds:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
