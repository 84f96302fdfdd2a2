"""Copies of the volume's adapters on this machine's disk: how many there may be, what goes."""

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

# How long a copy is kept after the last request that uses it: by then the engine has also dropped
# the requests that were cancelled.
GRACE_S = 60.0

# Directories of copies have this prefix, then the id of the process that made them.
COPIES = "worker-adapters-"


class Copies:
    """The copies of one client's adapters; not for several threads, but for ``fill``.

    A copy is kept while its adapter is served, then until no request uses it, and a minute more.
    Copies on their way out may take as much room again as those that are served, which is ``size``
    bytes at most; None: a quarter of the free disk.
    """

    def __init__(self, adapters: int = 1_000, size: int | None = None) -> None:
        self._adapters = adapters
        self._size = size
        self._sizes: dict[Path, int] = {}
        # Those that are on their way out, and since when no request uses them.
        self._retired: dict[Path, float] = {}

    @cached_property
    def size(self) -> int:
        """The most bytes of the adapters that are served."""
        if self._size is not None:
            return self._size
        return shutil.disk_usage(tempfile.gettempdir()).free // 4

    def serve_also(self, size: int) -> bool:
        """Return whether an adapter of so many bytes can be served next to the others."""
        served = [kept for path, kept in self._sizes.items() if path not in self._retired]
        return self._holds([*served, size])

    def hold_also(self, size: int) -> bool:
        """Return whether there is room for a copy, next to those that are on their way out."""
        # Copies that no request has used for a while go first.
        for path, unused_since in [*self._retired.items()]:
            if time.monotonic() - unused_since > GRACE_S:
                shutil.rmtree(path, ignore_errors=True)
                del self._sizes[path], self._retired[path]
        return self._holds([*self._sizes.values(), size], times=2)

    def _holds(self, sizes: Collection[int], times: int = 1) -> bool:
        return len(sizes) <= times * self._adapters and sum(sizes) <= times * self.size

    def begin(self, name: str, size: int) -> Path:
        """Make the directory of a copy, and count it from now on."""
        path = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._folder))
        self._sizes[path] = size
        return path

    def retire(self, path: Path) -> None:
        """Note that a copy's adapter is not served any more; requests may still use it."""
        self._retired[path] = math.inf

    def remove_after(self, user: object, path: Path) -> None:
        """Remove a copy when an object is gone, after a while."""
        retired = self._retired

        def note() -> None:
            retired[path] = time.monotonic()

        weakref.finalize(user, note)

    @cached_property
    def _folder(self) -> Path:
        """The directory of all copies: removed with this object, or by a later process."""
        remove_copies_of_ended_processes()
        path = Path(tempfile.mkdtemp(prefix=f"{COPIES}{os.getpid()}-"))
        weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)
        return path


def fill(path: Path, root: Path, name: str) -> None:
    """Copy an adapter's files from the volume.

    Raises:
        BrokenAdapter: a file is missing, or is outside ``root`` by now.
        OSError: the volume can't be read, or the disk is full.
    """
    top, folder = root.resolve(), (root / name).resolve()
    if missing := [file for file in FILES if not (folder / file).is_file()]:
        raise BrokenAdapter(f"it has no {' and no '.join(missing)}")
    for file in FILES:
        with (folder / file).open("rb") as source, (path / file).open("wb") as target:
            # Of the open file: a link may have been changed since its version was read.
            place = Path(f"/proc/self/fd/{source.fileno()}").resolve()
            if not place.is_relative_to(top):
                raise BrokenAdapter(f"its {file} is not in the directory of the adapters")
            shutil.copyfileobj(source, target, 1 << 20)


def remove_copies_of_ended_processes() -> None:
    """Remove what workers have left behind: they end without tidying up."""
    for copies in Path(tempfile.gettempdir()).glob(f"{COPIES}*"):
        process = copies.name.removeprefix(COPIES).split("-")[0]
        if process.isdigit() and not psutil.pid_exists(int(process)):
            shutil.rmtree(copies, ignore_errors=True)
