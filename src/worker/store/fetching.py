"""What is wanted: found on the disk at once, or obtained by a process of its own meanwhile."""

import contextlib
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from worker.errors import StartFailed
from worker.store.places import Places
from worker.store.refusals import Reason, Unavailable
from worker.store.resolve import Found, resolve
from worker.store.snapshot import Origin, Wanted

_SOURCES = Path(__file__).parents[2]
# For the hub's libraries, where the operator left them unset.
_DEFAULTS = {
    # That for large files would ask an address that is dead for minutes, before they are
    # downloaded in the other way.
    "HF_XET_CLIENT_RETRY_MAX_ATTEMPTS": "3",
    "HF_XET_CLIENT_RETRY_BASE_DELAY": "1s",
    "HF_XET_CLIENT_READ_TIMEOUT": "10s",
    # Before its first request, the other one would find out who might be running it.
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
# How long a process may take to hand its lease back.
_FAREWELL_S = 2.0


@dataclass(frozen=True)
class Order:
    """What is to be obtained, and whether the hub is asked for what is there already."""

    wanted: list[Wanted]
    places: Places
    newest: bool = False


@dataclass(frozen=True)
class Answer:
    """Where everything was found; or why something can't be had."""

    found: list[Found]
    reason: Reason | None = None
    told: str = ""
    remedy: str = ""


ORDER = TypeAdapter(Order)
ANSWER = TypeAdapter(Answer)

_running: "weakref.WeakSet[Fetching]" = weakref.WeakSet()


def end_all() -> None:
    """End all downloads of this process, so that others may go on with them at once."""
    for fetching in tuple(_running):
        fetching.end()


class Fetching:
    """Begins to obtain what is wanted; starts no thread.

    Args:
        wanted: directories and repositories.
        places: where they may lie.
        environ: of the process that downloads.
        newest: the hub is asked whether what is on the volume is still the newest.
    """

    def __init__(
        self,
        wanted: Sequence[Wanted],
        places: Places,
        environ: Mapping[str, str],
        newest: bool = False,
    ) -> None:
        looked = [resolve(each, places) for each in wanted]
        there = [each for each in looked if isinstance(each, Found)]
        # Only what was downloaded may have a newer state.
        settled = [each for each in there if not (newest and each.origin is Origin.VOLUME)]
        self._found = {each.wanted: each for each in settled}
        missing = [each for each in wanted if each not in self._found]
        self._child = _started(Order(missing, places, newest), environ) if missing else None
        _running.add(self)

    def result(self) -> dict[Wanted, Found]:
        """Wait until everything is there, and return where.

        Raises:
            Unavailable: something can't be had.
            StartFailed: the download ended before it was done.
        """
        child = self._child
        if child and child.stdout:
            content = child.stdout.read()
            self.close()
            try:
                answer = ANSWER.validate_json(content)
            except ValidationError:
                raise StartFailed(_ended(child.returncode)) from None
            if answer.reason:
                raise Unavailable(answer.reason, answer.told, answer.remedy)
            self._found |= {each.wanted: each for each in answer.found}
        return self._found

    def close(self) -> None:
        """End the download, if it is still going on, and give back what it took."""
        self.end()
        child, self._child = self._child, None
        if child and child.stdout:
            child.stdout.close()

    def end(self) -> None:
        """End the download; also out of a signal's handler, while ``result`` reads."""
        child = self._child
        if child is None:
            return
        if child.stdin:
            child.stdin.close()
        try:
            child.wait(_FAREWELL_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _started(order: Order, environ: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    path = [str(_SOURCES), environ.get("PYTHONPATH", "")]
    child = subprocess.Popen(
        # Of the current directory nothing is imported.
        [sys.executable, "-P", "-m", "worker.store.download"],
        env={**_DEFAULTS, **environ, "PYTHONPATH": ":".join(filter(None, path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    # Has it ended already, whoever waits for its answer will see.
    with contextlib.suppress(BrokenPipeError):
        if child.stdin:
            # It stays open: the end of it is the end of whoever wants something.
            child.stdin.write(ORDER.dump_json(order) + b"\n")
            child.stdin.flush()
    return child


def _ended(status: int) -> str:
    if status == -signal.SIGKILL:
        return "The download was killed before it was complete: perhaps there is too little memory."
    return f"The download ended before it was complete (status {status}): the log says why."
