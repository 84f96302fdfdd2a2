"""The network volume, on which the workers of an endpoint keep data together.

``Volume`` resolves the paths that callers name, and has those of the worker's own data. Each file
has only one writer at a time: most files and directories appear complete under their names
(``durable``), others are only appended to, and leases are rewritten in place (``lease``). An object
has an id that can't be guessed, and that says on which of several volumes it is (``ids``). Lists of
objects are read from indexes (``pages``). ``adapters`` finds LoRA adapters, and ``links`` signs
URLs of files.
"""

import contextlib
import errno
import os
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from worker.errors import InvalidInput, VolumeError
from worker.volume.ids import UNKNOWN_LOCATION, VolumeLocation

if TYPE_CHECKING:
    # The image build imports this package for its leases, in an environment without the settings.
    from worker.settings import Settings

# Directories in the volume's root.
WORKER_DIRECTORY = "worker"
ADAPTERS_DIRECTORY = "adapters"
# Directories in the root that callers may not name: the worker's own data, and the models and
# compiled code that it runs.
PRIVATE_DIRECTORIES = (WORKER_DIRECTORY, "huggingface-cache", "compile-cache", ADAPTERS_DIRECTORY)
S3_SCHEME = "s3://"
# Maximum directories in a caller's path: each is created, synced and removed by a call of its own.
MAX_PATH_PARTS = 32
# Categories of characters that a caller's path may not have: controls, unpaired surrogates, and
# separators of lines and paragraphs.
_UNPRINTABLE = {"Cc", "Cs", "Zl", "Zp"}
# Disk space reserved for the worker's own small files: 1/20 of the disk, up to this many bytes.
RESERVED_DIVISOR = 20
MAX_RESERVED_BYTES = 200_000_000

_REASONS = {
    errno.ENOSPC: "the volume is full",
    errno.EDQUOT: "the volume is full",
    errno.EROFS: "the volume is read-only",
    errno.EACCES: "the volume may not be written to",
    errno.EPERM: "the volume may not be written to",
}


@dataclass(frozen=True, slots=True)
class Volume:
    """The network volume, or another directory that is used instead.

    Args:
        root: Directory that callers' paths are relative to.
        bucket: Id of the volume, which is its bucket in the platform's S3 API; None if unknown.
        location: Id of the volume in the ids of objects, and its data center.
        may_create_root: Whether the root may be created; False for a mounted volume.
        input_directories: Directories in the root that callers may name files in, in addition to
            ``output_directory``.
        output_directory: Directory in the root that callers may have files written to.
        private_paths: Paths of the operator and of the worker that callers may not name.
    """

    root: Path
    bucket: str | None = None
    location: VolumeLocation = UNKNOWN_LOCATION
    may_create_root: bool = True
    input_directories: tuple[str, ...] = ("inbox", "uploads")
    output_directory: str = "out"
    private_paths: tuple[Path, ...] = ()

    @classmethod
    def from_settings(cls, settings: "Settings") -> "Volume":
        base, bucket = settings.base_path, settings.runpod_volume_id
        root = settings.files_path or base
        worker_paths = [path / name for path in {root, base} for name in PRIVATE_DIRECTORIES]
        paths = (base, *settings.paths_in_environ)
        # A parent directory of the root would make the whole root private.
        others = [path for path in paths if not _real_path(root).is_relative_to(_real_path(path))]
        return cls(
            root,
            bucket,
            VolumeLocation.from_settings(settings),
            may_create_root=settings.files_path is not None,
            input_directories=settings.files_input_paths,
            output_directory=settings.files_output_path,
            private_paths=(*worker_paths, *others),
        )

    @property
    def is_usable(self) -> bool:
        """Whether the root exists or may be created."""
        return self.may_create_root or self.root.is_dir()

    def worker_path(self, name: str) -> Path:
        """Return the path for some of the worker's own data, which may not exist yet.

        Raises:
            VolumeError: There is no volume.
        """
        if not self.is_usable:
            raise VolumeError(
                "this worker has no network volume to keep files on: "
                "its operator has to attach one, or set FILES_PATH"
            )
        return self.root / WORKER_DIRECTORY / name

    def input_path(self, path: str) -> Path:
        """Return the resolved path of an input file that a caller names.

        Args:
            path: Path relative to the root, absolute path, or ``s3://<volume id>/key``.

        Raises:
            InvalidInput: The path leads out of the directories that callers may name.
            OnOtherVolume: The path names another volume.
            VolumeError: There is no volume.
        """
        directories = (*self.input_directories, self.output_directory)
        return self._resolve_allowed(path, directories, "FILES_INPUT_PATHS")

    def output_path(self, path: str) -> Path:
        """Return the resolved path of a file that a caller wants written; see ``input_path``."""
        return self._resolve_allowed(path, (self.output_directory,), "FILES_OUTPUT_PATH")

    def _resolve_allowed(self, path: str, directories: Sequence[str], setting: str) -> Path:
        self.worker_path("")
        root, resolved = self.root.resolve(), self._resolve(path)
        if resolved == root or not resolved.is_relative_to(root):
            raise InvalidInput(f"{path}: the path leads out of the volume")
        allowed = {_real_path(root / name) for name in directories}
        # An allowed directory may be a symlink, but only to another directory in the volume.
        if not any(
            directory in resolved.parents and root in directory.parents for directory in allowed
        ):
            names = ", ".join(f"{name}/" for name in directories)
            raise InvalidInput(f"{path}: callers' paths are below {names} ({setting})")
        if any(part.startswith(".") for part in resolved.relative_to(root).parts):
            raise InvalidInput(f"{path}: no part of a path begins with a dot")
        for private_path in map(_real_path, self.private_paths):
            # A file in place of a parent would prevent the creation of the private directory.
            if resolved.is_relative_to(private_path) or private_path.is_relative_to(resolved):
                raise InvalidInput(f"{path}: this part of the volume is the operator's own")
        return resolved

    def _resolve(self, path: str) -> Path:
        """Resolve a path, even if it leads out of the volume.

        Raises:
            InvalidInput: The path is empty, can't exist, or names a bucket that is no volume's id.
            OnOtherVolume: The path names the bucket of another volume.
        """
        key = path
        if path.startswith(S3_SCHEME):
            bucket, _, key = path.removeprefix(S3_SCHEME).partition("/")
            if bucket != self.bucket:
                self.location.check_bucket(bucket, path)
                raise InvalidInput(f"{path}: this worker has no other bucket than its volume's")
        if not key:
            raise InvalidInput("a path names a file on the volume")
        # A path appears in logs, and in the terminals of those who list the volume.
        if any(unicodedata.category(character) in _UNPRINTABLE for character in key):
            raise InvalidInput("a path has no control characters")
        if key.count("/") > MAX_PATH_PARTS:
            raise InvalidInput(f"a path has at most {MAX_PATH_PARTS} directories")
        try:
            resolved = (self.root.resolve() / key).resolve()
            resolved.is_file()
        except (OSError, RuntimeError, UnicodeEncodeError):
            # The path has a symlink loop, a name that is too long, or an unpaired surrogate.
            raise InvalidInput("no such path can exist") from None
        return resolved


def _real_path(path: Path) -> Path:
    """Resolve a path, even if its symlinks form a loop."""
    return Path(os.path.realpath(path))


def check_space(directory: Path, size: int = 0) -> None:
    """Check that a file fits on the disk, without using the reserved disk space.

    Args:
        directory: Directory on the disk; it doesn't need to exist.
        size: Size of the file in bytes.

    Raises:
        VolumeError: The disk is full, except for the reserved space.
    """
    existing = next(place for place in (directory, *directory.parents) if place.exists())
    with translate_os_errors():
        disk = os.statvfs(existing)
    reserved = min(MAX_RESERVED_BYTES, disk.f_blocks * disk.f_frsize // RESERVED_DIVISOR)
    if disk.f_bavail * disk.f_frsize < reserved + size:
        raise VolumeError(f"the volume is full: {reserved // 1_000_000:,} MB of it are reserved")


@contextlib.contextmanager
def translate_os_errors() -> Iterator[None]:
    """Raise ``VolumeError`` instead of ``OSError``, whose message contains paths."""
    try:
        yield
    except OSError as error:
        text = os.strerror(error.errno) if error.errno else type(error).__name__
        raise VolumeError(_REASONS.get(error.errno or 0, f"the volume fails: {text}")) from error
