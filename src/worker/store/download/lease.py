"""Lets exactly one of many workers that share a volume do something, by files alone.

Locks on a network disk can't be trusted; that a file is created once can. A lease is a file that
its owner rewrites again and again. Whoever waits and sees no change for a while takes over, by
creating the file of the next attempt. Clocks of different machines are not compared, and a pause
of the whole machine counts for nothing: only looks without a change are counted.
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

# How often an owner says that it lives, and how often others look.
BEAT_S = 2.0
LOOK_S = 1.0
# Looks without a change after which an owner counts as dead.
PATIENCE = 15


@dataclass(frozen=True)
class Claim:
    """What stands in a lease: whose it is, and how far its owner has come, in bytes."""

    owner: str
    host: str
    pid: int
    attempt: int
    beat: int = 0
    done: int = 0
    total: int = 0


_JSON = TypeAdapter(Claim)

# What this process holds.
_held: set["Lease"] = set()


def release_all() -> None:
    """Let others have at once what this process holds: it is about to end."""
    for lease in tuple(_held):
        lease.release()


class Lease:
    """Held by this process, and kept alive by a thread, until ``release``.

    ``lost`` is set when another worker has taken it over: what is being done is then to end.

    Args:
        path: of the file, which this process has just created.
        attempt: its number.
        progress: returns the bytes that are done, and those that there are.
    """

    def __init__(self, path: Path, attempt: int, progress: Callable[[], tuple[int, int]]) -> None:
        self.attempt = attempt
        self.lost = threading.Event()
        self._path = path
        self._progress = progress
        self._owner = uuid4().hex
        self._beat = 0
        self._ended = threading.Event()
        self._say()
        _held.add(self)
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Let others have it at once."""
        self._ended.set()
        _held.discard(self)
        with contextlib.suppress(OSError):
            if self._ours():
                self._path.unlink(missing_ok=True)

    def _ours(self) -> bool:
        """Tell whether nobody has taken over; who had may be done, and numbers begin again."""
        newest = _newest(self._path.parent) == self.attempt
        return newest and self._owner.encode() in self._path.read_bytes()

    def _keep(self) -> None:
        while not self._ended.wait(BEAT_S):
            try:
                if not self._ours():
                    break
                self._say()
            except OSError:
                # What can't be written now, others will take over.
                continue
        if not self._ended.is_set():
            self.lost.set()

    def _say(self) -> None:
        self._beat += 1
        done, total = self._progress()
        claim = Claim(
            self._owner, socket.gethostname(), os.getpid(), self.attempt, self._beat, done, total
        )
        # In place: whoever opens the file anew sees it, also on a network disk.
        with self._path.open("r+b") as opened:
            opened.write(_JSON.dump_json(claim))
            opened.truncate()


class Leases:
    """The leases in a directory, as one worker sees them; asked again and again until it has one.

    Args:
        directory: made if it is not there.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: tuple[int, bytes] | None = None
        self._unchanged = 0

    @contextlib.contextmanager
    def taken(self, progress: Callable[[], tuple[int, int]]) -> Iterator[Lease | None]:
        """Take the lease if nobody who lives has it; release it on leaving.

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
            # Another one was faster: with taking it, or with tidying up.
            yield None
            return
        try:
            lease = Lease(path, attempt, progress)
        except OSError:
            # A full disk has room for the file, but not for what is to stand in it.
            path.unlink(missing_ok=True)
            raise
        try:
            _remove_before(self._directory, attempt)
            yield lease
        finally:
            lease.release()

    def look(self) -> Claim | None:
        """See what the owner says, once every ``LOOK_S``; nothing, if there is no owner."""
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
        """Tell whether this attempt's owner, and not one before it, was waited for in vain."""
        seen = self._seen is not None and self._seen[0] == attempt
        return seen and self._unchanged >= PATIENCE


def _newest(directory: Path) -> int:
    """Return the number of the newest attempt; 0, if there is none."""
    numbers = [path.name.removeprefix(_PREFIX) for path in directory.glob(f"{_PREFIX}*")]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def _remove_before(directory: Path, attempt: int) -> None:
    for path in directory.glob(f"{_PREFIX}*"):
        number = path.name.removeprefix(_PREFIX)
        if number.isdecimal() and int(number) < attempt:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
