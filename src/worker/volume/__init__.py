"""What workers keep on the network volume: where it lies, and how it is written.

Every file has one writer and is written once, under a temporary name first, or is only appended to.
"""

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from worker.errors import InvalidInput, VolumeError

if TYPE_CHECKING:
    # The image's build has the lease and no settings.
    from worker.settings import Settings

# Directories in the root.
KEPT = "worker"
ADAPTERS = "adapters"
# Directories in the root that no caller may name: the worker's own, and what it runs.
PRIVATE = (KEPT, "huggingface-cache", "compile-cache", ADAPTERS)
S3 = "s3://"
# Bytes of the disk that stay free for the worker's own small files: a part of it, at most so many.
RESERVED_PART = 20
RESERVED = 200_000_000

_REASONS = {
    errno.ENOSPC: "the volume is full",
    errno.EDQUOT: "the volume is full",
    errno.EROFS: "the volume is read-only",
    errno.EACCES: "the volume may not be written to",
    errno.EPERM: "the volume may not be written to",
}


@dataclass(frozen=True, slots=True)
class Volume:
    """The network volume, or another directory in its place.

    Args:
        root: what callers' paths are relative to.
        bucket: the volume's id, which is its bucket in the platform's S3 API; None: unknown.
        optional: whether the root may have to be made: it is no mounted volume.
        inputs: directories of the root in which callers may name files, besides ``output``.
        output: the directory of the root in which callers may have files written.
        private: what no caller may name wherever it is: the operator's, and the worker's own.
    """

    root: Path
    bucket: str | None = None
    optional: bool = True
    inputs: tuple[str, ...] = ("inbox", "uploads")
    output: str = "out"
    private: tuple[Path, ...] = ()

    @classmethod
    def of(cls, settings: "Settings") -> "Volume":
        base, bucket = settings.base_path, settings.runpod_volume_id
        root = settings.files_path or base
        own = [directory / name for directory in {root, base} for name in PRIVATE]
        # A directory around the root names no part of it.
        named = (base, *settings.paths)
        others = [path for path in named if not _real(root).is_relative_to(_real(path))]
        return cls(
            root,
            bucket,
            optional=settings.files_path is not None,
            inputs=settings.files_input_paths,
            output=settings.files_output_path,
            private=(*own, *others),
        )

    def directory(self, name: str) -> Path:
        """Return a directory of the worker's own.

        Raises:
            VolumeError: there is no volume.
        """
        if not (self.optional or self.root.is_dir()):
            raise VolumeError(
                "this worker has no network volume to keep files on: "
                "its operator attaches one, or sets FILES_PATH"
            )
        return self.root / KEPT / name

    def input(self, path: str) -> Path:
        """Return where a file is that a caller names.

        Args:
            path: relative to the root, absolute, or ``s3://<volume's id>/key``.

        Raises:
            InvalidInput: it leads out of the directories that callers may name.
            VolumeError: there is no volume.
        """
        return self._place(path, (*self.inputs, self.output), "FILES_INPUT_PATHS")

    def written(self, path: str) -> Path:
        """Return where a file is to be written that a caller names; see ``input``."""
        return self._place(path, (self.output,), "FILES_OUTPUT_PATH")

    def _place(self, path: str, directories: Sequence[str], setting: str) -> Path:
        self.directory("")
        root, place = self.root.resolve(), self._resolved(path)
        if place == root or not place.is_relative_to(root):
            raise InvalidInput(f"{path}: the path leads out of the volume")
        allowed = {_real(root / name) for name in directories}
        # A link of the operator's leads no further than to another part of the volume.
        if not any(
            directory in place.parents and root in directory.parents for directory in allowed
        ):
            names = ", ".join(f"{name}/" for name in directories)
            raise InvalidInput(f"{path}: callers' paths are below {names} ({setting})")
        if any(part.startswith(".") for part in place.relative_to(root).parts):
            raise InvalidInput(f"{path}: no part of a path begins with a dot")
        for private in map(_real, self.private):
            # What is around a directory that does not exist yet would be in its way.
            if place.is_relative_to(private) or private.is_relative_to(place):
                raise InvalidInput(f"{path}: this part of the volume is the operator's own")
        return place

    def _resolved(self, path: str) -> Path:
        """Return where a path leads, anywhere on the machine.

        Raises:
            InvalidInput: it leads nowhere, or to another bucket.
        """
        key = path
        if path.startswith(S3):
            bucket, _, key = path.removeprefix(S3).partition("/")
            if bucket != self.bucket:
                raise InvalidInput(f"{path}: this worker has no other bucket than its volume's")
        if not key or "\0" in key:
            raise InvalidInput("a path names a file on the volume")
        try:
            place = (self.root.resolve() / key).resolve()
            place.is_file()
        except (OSError, RuntimeError, UnicodeEncodeError):
            # Links in a circle, names that are too long, or halves of surrogate pairs.
            raise InvalidInput("the path leads to nothing that there can be") from None
        return place


def _real(path: Path) -> Path:
    """Resolve a path, also one whose links go in a circle."""
    return Path(os.path.realpath(path))


def check_space(directory: Path, wanted: int = 0) -> None:
    """Check that something may be written: a part of the disk stays free for what must be.

    Args:
        directory: on the disk; it need not exist.
        wanted: bytes of it.

    Raises:
        VolumeError: the disk is full, but for that part.
    """
    there = next(place for place in (directory, *directory.parents) if place.exists())
    with failures():
        disk = os.statvfs(there)
    reserved = min(RESERVED, disk.f_blocks * disk.f_frsize // RESERVED_PART)
    if disk.f_bavail * disk.f_frsize < reserved + wanted:
        raise VolumeError(f"the volume is full: {reserved // 1_000_000:,} MB of it stay free")


@contextlib.contextmanager
def failures() -> Iterator[None]:
    """Raise ``VolumeError`` for what the file system refuses: what it says has paths in it."""
    try:
        yield
    except OSError as error:
        text = os.strerror(error.errno) if error.errno else type(error).__name__
        raise VolumeError(_REASONS.get(error.errno or 0, f"the volume fails: {text}")) from error


def write(path: Path, content: bytes) -> None:
    """Write a small file: readers see the old one or the new one.

    Raises:
        OSError: it can't be written; then nothing is left.
    """
    write_parts(path, (content,))


def write_parts(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file of any size: readers see the old one or the new one.

    Raises:
        OSError: it can't be written; then nothing is left.
    """
    with _temporary(path, parts) as temporary:
        temporary.replace(path)
    sync_directory(path.parent)


def write_once(path: Path, content: bytes) -> bool:
    """Write a small file that is never written again.

    Returns:
        False if it is there already; then it stays as it is.

    Raises:
        OSError: it can't be written; then nothing is left.
    """
    if path.exists():
        return False
    with _temporary(path, (content,)) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            # Not every network disk has links; then two may both write, one after the other.
            if error.errno not in {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}:
                raise
            temporary.replace(path)
    sync_directory(path.parent)
    return True


def make_directory(directory: Path) -> None:
    """Make a directory with those above it. The worker's own is for no other user."""
    for place in (directory, *directory.parents):
        if place.name == KEPT and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.mkdir(mode=0o700, exist_ok=True)
    directory.mkdir(parents=True, exist_ok=True)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _temporary(path: Path, parts: Iterable[bytes]) -> Iterator[Path]:
    """Write a durable file beside a path, which is gone after the block unless it was renamed."""
    make_directory(path.parent)
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with temporary.open("xb") as opened:
            opened.writelines(parts)
            opened.flush()
            os.fsync(opened.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
