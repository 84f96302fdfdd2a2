"""Leases: of all workers that share a volume, only one owns a lease at a time.

Locks on a network disk are unreliable, but exclusive creation of a file works. A lease is a
numbered file that its owner rewrites every few seconds. A worker that sees no change for a number
of polls takes over by creating the file with the next number. Clocks may differ between machines,
and a machine may be paused, so they alone never make an owner count as dead: if the last heartbeat
looks old, fewer polls without a change suffice.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError

_PREFIX = "lease-"

# Seconds between two heartbeats of an owner, and between two polls of a worker that waits.
HEARTBEAT_S = 2.0
POLL_S = 1.0
# Consecutive polls without a change after which an owner counts as dead.
MAX_UNCHANGED_POLLS = 15
# Seconds since the last heartbeat after which an owner is probably dead, by the clocks of machines,
# and polls without a change that confirm it: more than one heartbeat would have been written.
SILENT_S = MAX_UNCHANGED_POLLS * POLL_S
CONFIRMING_POLLS = 3


@dataclass(frozen=True)
class Claim:
    """The content of a lease file. ``owner`` is a random id.

    ``attempt`` is the number of the file, ``beat`` the number of heartbeats. Of ``total`` units of
    the owner's work, ``done`` are completed.
    """

    owner: str
    host: str
    pid: int
    attempt: int
    beat: int = 0
    done: int = 0
    total: int = 0


_CLAIM_JSON = TypeAdapter(Claim)


class HeartbeatFile(Protocol):
    """A file with heartbeats of this process."""

    def renew(self) -> None:
        """Write the next heartbeat."""

    def release(self) -> None:
        """Remove the file, because this process is about to exit."""


class Heartbeats:
    """The files of this process that one thread renews every ``HEARTBEAT_S`` seconds."""

    def __init__(self) -> None:
        self._files: set[HeartbeatFile] = set()
        self._changed = threading.Condition()
        self._is_thread_running = False

    def __iter__(self) -> Iterator[HeartbeatFile]:
        with self._changed:
            return iter(tuple(self._files))

    def add(self, file: HeartbeatFile) -> None:
        with self._changed:
            self._files.add(file)
            if not self._is_thread_running:
                threading.Thread(target=self._renew_files, name="leases", daemon=True).start()
                self._is_thread_running = True

    def remove(self, file: HeartbeatFile) -> bool:
        """Renew a file no longer; return whether it was renewed until now."""
        with self._changed:
            is_known = file in self._files
            self._files.discard(file)
            self._changed.notify()
        return is_known

    def _renew_files(self) -> None:
        """Renew all files, until the last one is removed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._files, HEARTBEAT_S)
                self._is_thread_running = bool(self._files)
                if not self._is_thread_running:
                    return
            for file in self:
                file.renew()


heartbeats = Heartbeats()


def release_all_leases() -> None:
    """Release all leases of this process, which is about to exit."""
    for file in heartbeats:
        file.release()


class Lease:
    """A lease that this process owns, which is renewed until ``release``.

    ``lost`` is set when another worker has taken over: the work that the lease protects must stop.

    Args:
        path: The lease file, which this process has just created.
        number: Number of the lease file.
        progress: Returns the completed and the total amount of work.
    """

    def __init__(self, path: Path, number: int, progress: Callable[[], tuple[int, int]]) -> None:
        self.number = number
        self.lost = threading.Event()
        self._path = path
        self._progress = progress
        self.owner = uuid4().hex
        self._beats = 0
        self._write_claim()
        heartbeats.add(self)

    def release(self) -> None:
        """Release the lease, so that another worker can acquire it immediately."""
        heartbeats.remove(self)
        with contextlib.suppress(OSError):
            if self._is_owned():
                self._path.unlink(missing_ok=True)

    def _is_owned(self) -> bool:
        """Return whether no other worker has taken over, with a higher or the same number."""
        is_newest = newest_lease_number(self._path.parent) == self.number
        return is_newest and self.owner.encode() in self._path.read_bytes()

    def renew(self) -> None:
        """Write the next heartbeat, or set ``lost`` if another worker has taken over."""
        try:
            if self._is_owned():
                self._write_claim()
                return
        except OSError:
            # If the error persists, another worker takes over.
            return
        if heartbeats.remove(self):
            self.lost.set()

    def _write_claim(self) -> None:
        self._beats += 1
        done, total = self._progress()
        claim = Claim(
            self.owner, socket.gethostname(), os.getpid(), self.number, self._beats, done, total
        )
        # Written in place: a reader that opens the file again sees the change, also on a network
        # disk.
        with self._path.open("r+b") as opened:
            opened.write(_CLAIM_JSON.dump_json(claim))
            opened.truncate()


class LeaseDirectory:
    """The directory of one lease, which this process may acquire, or poll for its owner.

    Args:
        directory: Directory of the lease files; created if it doesn't exist.
        max_unchanged: Consecutive polls without a change after which an owner counts as dead.
    """

    def __init__(self, directory: Path, max_unchanged: int = MAX_UNCHANGED_POLLS) -> None:
        self._directory = directory
        self._max_unchanged = max_unchanged
        self._last_poll: tuple[int, bytes] | None = None
        self._unchanged_polls = 0

    @contextlib.contextmanager
    def acquire(
        self, progress: Callable[[], tuple[int, int]] = lambda: (0, 0)
    ) -> Iterator[Lease | None]:
        """Acquire the lease for the block; yield None if another worker has it and may be alive.

        An owner counts as dead only after enough calls of ``poll_claim``.

        Args:
            progress: Returns the completed and the total amount of work, for other workers to read.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        newest = newest_lease_number(self._directory)
        number = newest + 1
        if newest and not self._is_owner_dead(newest):
            yield None
            return
        path = self._directory / f"{_PREFIX}{number}"
        try:
            path.open("xb").close()
        except (FileExistsError, FileNotFoundError):
            # Another worker was faster: it acquired the lease, or removed the empty directory.
            yield None
            return
        try:
            lease = Lease(path, number, progress)
        except OSError:
            # A full disk may have space for the file, but not for its content.
            path.unlink(missing_ok=True)
            raise
        try:
            _remove_older_leases(self._directory, number)
            yield lease
        finally:
            lease.release()

    def poll_claim(self) -> Claim | None:
        """Return the owner's claim, if it is readable now; call this every ``POLL_S`` seconds."""
        newest = newest_lease_number(self._directory)
        try:
            content = (self._directory / f"{_PREFIX}{newest}").read_bytes()
        except OSError:
            self._unchanged_polls = 0
            return None
        unchanged = self._last_poll == (newest, content)
        self._unchanged_polls = self._unchanged_polls + 1 if unchanged else 0
        self._last_poll = newest, content
        try:
            return _CLAIM_JSON.validate_json(content)
        except ValidationError:
            # The owner is writing the file.
            return None

    def _is_owner_dead(self, number: int) -> bool:
        """Return whether the owner of the lease with this number was silent for too many polls."""
        if self._last_poll is None or self._last_poll[0] != number:
            return False
        polls = self._unchanged_polls
        if CONFIRMING_POLLS <= polls < self._max_unchanged:
            with contextlib.suppress(OSError):
                path = self._directory / f"{_PREFIX}{number}"
                return path.stat().st_mtime < time.time() - SILENT_S
        return polls >= self._max_unchanged


def newest_lease_number(directory: Path) -> int:
    """Return the number of the newest lease; 0 if the directory has no leases."""
    numbers = [path.name.removeprefix(_PREFIX) for path in directory.glob(f"{_PREFIX}*")]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def _remove_older_leases(directory: Path, newest: int) -> None:
    for path in directory.glob(f"{_PREFIX}*"):
        number = path.name.removeprefix(_PREFIX)
        if number.isdecimal() and int(number) < newest:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
