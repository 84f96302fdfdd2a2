"""Leases: of many workers that share a volume, exactly one holds one at a time.

Locks on a network disk can't be trusted, exclusive creation of a file can. A lease is a numbered
file that its owner rewrites every few seconds. A worker that sees no change for a while takes over
by creating the file of the next number. No clocks are compared, neither of two machines nor of one
that was paused: only looks without a change are counted.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError

_PREFIX = "lease-"

# Seconds between two heartbeats of an owner, and between two looks of the others.
BEAT_S = 2.0
LOOK_S = 1.0
# Looks without a change after which an owner counts as dead.
PATIENCE = 15


@dataclass(frozen=True)
class Claim:
    """The content of a lease: its owner, and how far the owner has come, in its own unit."""

    owner: str
    host: str
    pid: int
    attempt: int
    beat: int = 0
    done: int = 0
    total: int = 0


_JSON = TypeAdapter(Claim)

# The leases that this process holds.
_held: set["Lease"] = set()


def release_all() -> None:
    """Release all leases of this process, which is about to end."""
    for lease in tuple(_held):
        lease.release()


class Lease:
    """A lease that this process holds, kept alive by a thread until ``release``.

    ``lost`` is set when another worker has taken over: the work that it protects must end.

    Args:
        path: the file, which this process has just created.
        attempt: its number.
        progress: returns how much is done, and how much there is to do.
    """

    def __init__(self, path: Path, attempt: int, progress: Callable[[], tuple[int, int]]) -> None:
        self.attempt = attempt
        self.lost = threading.Event()
        self._path = path
        self._progress = progress
        self.owner = uuid4().hex
        self._beat = 0
        self._ended = threading.Event()
        self._write()
        _held.add(self)
        self._thread = threading.Thread(target=self.keep_alive, name="lease", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Let another worker take the lease at once."""
        self._ended.set()
        _held.discard(self)
        with contextlib.suppress(OSError):
            if self._is_mine():
                self._path.unlink(missing_ok=True)

    def _is_mine(self) -> bool:
        """Return whether no other worker has taken over, since then or with the same number."""
        newest = _newest(self._path.parent) == self.attempt
        return newest and self.owner.encode() in self._path.read_bytes()

    def keep_alive(self) -> None:
        """Rewrite the lease every ``BEAT_S`` seconds, until it is released or lost."""
        while not self._ended.wait(BEAT_S):
            try:
                if not self._is_mine():
                    break
                self._write()
            except OSError:
                # If it lasts, another worker takes over.
                continue
        if not self._ended.is_set():
            self.lost.set()

    def _write(self) -> None:
        self._beat += 1
        done, total = self._progress()
        claim = Claim(
            self.owner, socket.gethostname(), os.getpid(), self.attempt, self._beat, done, total
        )
        # In place: a reader that opens the file anew sees it, also on a network disk.
        with self._path.open("r+b") as opened:
            opened.write(_JSON.dump_json(claim))
            opened.truncate()


class Leases:
    """The leases in a directory, as one worker sees them while it waits for its own.

    Args:
        directory: created if it doesn't exist.
        patience: looks without a change after which an owner counts as dead.
    """

    def __init__(self, directory: Path, patience: int = PATIENCE) -> None:
        self._directory = directory
        self._patience = patience
        self._seen: tuple[int, bytes] | None = None
        self._unchanged = 0

    @contextlib.contextmanager
    def taken(
        self, progress: Callable[[], tuple[int, int]] = lambda: (0, 0)
    ) -> Iterator[Lease | None]:
        """Take the lease for the block, or yield None if a living owner has it.

        Args:
            progress: returns how much is done and how much there is to do, for others to read.

        Raises:
            OSError: the directory can't be written to.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        newest = _newest(self._directory)
        attempt = newest + 1
        if newest and not self._dead(newest):
            yield None
            return
        path = self._directory / f"{_PREFIX}{attempt}"
        try:
            path.open("xb").close()
        except (FileExistsError, FileNotFoundError):
            # Another worker was faster: it took the lease, or removed the empty directory.
            yield None
            return
        try:
            lease = Lease(path, attempt, progress)
        except OSError:
            # A full disk has room for the file, but not for its content.
            path.unlink(missing_ok=True)
            raise
        try:
            _remove_before(self._directory, attempt)
            yield lease
        finally:
            lease.release()

    def look(self) -> Claim | None:
        """Return the owner's claim, if there is one. To be called every ``LOOK_S`` seconds."""
        attempt = _newest(self._directory)
        try:
            content = (self._directory / f"{_PREFIX}{attempt}").read_bytes()
        except OSError:
            self._unchanged = 0
            return None
        unchanged = self._seen == (attempt, content)
        self._unchanged = self._unchanged + 1 if unchanged else 0
        self._seen = attempt, content
        try:
            return _JSON.validate_json(content)
        except ValidationError:
            # It is being written.
            return None

    def _dead(self, attempt: int) -> bool:
        """Return whether the owner of this attempt, not of an earlier one, was silent too long."""
        seen = self._seen is not None and self._seen[0] == attempt
        return seen and self._unchanged >= self._patience


def _newest(directory: Path) -> int:
    """Return the number of the newest lease; 0, if there is none."""
    numbers = [path.name.removeprefix(_PREFIX) for path in directory.glob(f"{_PREFIX}*")]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def _remove_before(directory: Path, attempt: int) -> None:
    for path in directory.glob(f"{_PREFIX}*"):
        number = path.name.removeprefix(_PREFIX)
        if number.isdecimal() and int(number) < attempt:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
