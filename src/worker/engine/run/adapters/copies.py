"""Local copies of the volume's adapters, with limits for their number and size."""

import math
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Collection
from functools import cached_property
from pathlib import Path

import psutil

from worker.engine.run.adapters.files import BrokenAdapter
from worker.volume.adapters import FILES

# Seconds to retain a copy after the last request that uses it. By then the engine has also dropped
# the requests that were cancelled.
GRACE_PERIOD_S = 60.0

# Prefix of the directories with copies. The id of the process that created the directory follows.
DIRECTORY_PREFIX = "worker-adapters-"


class AdapterCopies:
    """The local copies of one engine's adapters. Not thread-safe.

    A copy is retired when its adapter is no longer served. A retired copy expires when no request
    has used it for ``GRACE_PERIOD_S``, and is removed before the next copy is made. Served and
    retired copies together may use twice the limits for served adapters.

    The default of ``max_bytes`` is a quarter of the free disk space.
    """

    def __init__(self, max_adapters: int = 1_000, max_bytes: int | None = None) -> None:
        self._max_adapters = max_adapters
        self._max_bytes = max_bytes
        self._sizes: dict[Path, int] = {}
        # Retired copies, with the time of their last use; infinite while requests may use them.
        self._retired: dict[Path, float] = {}

    @cached_property
    def max_served_bytes(self) -> int:
        """Maximum total bytes of the served adapters."""
        if self._max_bytes is not None:
            return self._max_bytes
        return shutil.disk_usage(tempfile.gettempdir()).free // 4

    def can_serve(self, size: int) -> bool:
        """Return whether an adapter of ``size`` bytes can be served in addition to the others."""
        served = [copy_size for path, copy_size in self._sizes.items() if path not in self._retired]
        return self._fits_limits([*served, size])

    def make_space(self, size: int) -> bool:
        """Remove expired copies; return whether there is space for a copy of ``size`` bytes."""
        for path, unused_since in [*self._retired.items()]:
            if time.monotonic() - unused_since > GRACE_PERIOD_S:
                shutil.rmtree(path, ignore_errors=True)
                del self._sizes[path], self._retired[path]
        return self._fits_limits([*self._sizes.values(), size], factor=2)

    def _fits_limits(self, sizes: Collection[int], factor: int = 1) -> bool:
        return (
            len(sizes) <= factor * self._max_adapters
            and sum(sizes) <= factor * self.max_served_bytes
        )

    def create_directory(self, name: str, size: int) -> Path:
        """Create the directory for a copy, and count ``size`` bytes for it."""
        path = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._copies_directory))
        self._sizes[path] = size
        return path

    def retire(self, path: Path) -> None:
        """Mark a copy as retired: its adapter is no longer served; requests may still use it."""
        self._retired[path] = math.inf

    def expire_after_use(self, request: object, path: Path) -> None:
        """Let a copy expire when its ``LoRARequest``, which each use references, is deleted."""
        retired = self._retired

        def mark_unused() -> None:
            retired[path] = time.monotonic()

        weakref.finalize(request, mark_unused)

    @cached_property
    def _copies_directory(self) -> Path:
        """The directory of all copies; removed with this object, or by a later worker process."""
        remove_stale_copies()
        path = Path(tempfile.mkdtemp(prefix=f"{DIRECTORY_PREFIX}{os.getpid()}-"))
        weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)
        return path


def copy_adapter(path: Path, root: Path, name: str) -> None:
    """Copy an adapter from ``root``, the directory of all adapters, to the directory ``path``."""
    resolved_root, folder = root.resolve(), (root / name).resolve()
    if missing := [file for file in FILES if not (folder / file).is_file()]:
        raise BrokenAdapter(f"it has no {' and no '.join(missing)}")
    for file in FILES:
        with (folder / file).open("rb") as source, (path / file).open("wb") as target:
            # Resolve the open file: a link may have changed since the adapter's version was read.
            opened = Path(f"/proc/self/fd/{source.fileno()}").resolve()
            if not opened.is_relative_to(resolved_root):
                raise BrokenAdapter(f"its {file} is not in the directory of the adapters")
            shutil.copyfileobj(source, target, 1 << 20)


def remove_stale_copies() -> None:
    """Remove the copies of worker processes that exited without removing them."""
    for directory in Path(tempfile.gettempdir()).glob(f"{DIRECTORY_PREFIX}*"):
        pid = directory.name.removeprefix(DIRECTORY_PREFIX).split("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(directory, ignore_errors=True)
