"""Obtains what is wanted: what is on the disk at once, the rest through a child process.

The child is ``python -m worker.store.download``. It gets an ``Order`` on standard input, and writes
a ``Reply`` to standard output, both as JSON.
"""

import contextlib
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from worker import with_parent
from worker.errors import MachineUnfit
from worker.settings.environment import HUB_TOKEN, without_secrets
from worker.store.places import Places
from worker.store.refusals import Reason, Unavailable
from worker.store.resolve import Found, resolve
from worker.store.snapshot import Origin, Wanted

_SOURCES = Path(__file__).parents[2]
# Variables of the child that the operator may override.
_DEFAULTS = {
    # Otherwise huggingface_hub first asks the hub for a list of coding agents, to report its own.
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
# Seconds that a child has to release its leases before it is killed.
_GRACE_S = 2.0


@dataclass(frozen=True)
class Order:
    """What the child is to obtain; ``newest`` as in ``download.obtain``.

    The token is the hub's; in the environment of a process others could read it.
    """

    wanted: list[Wanted]
    places: Places
    newest: bool = False
    token: str = ""


@dataclass(frozen=True)
class Reply:
    """Where everything was found, in the order's order; or why something is unavailable."""

    found: list[Found]
    reason: Reason | None = None
    problem: str = ""
    remedy: str = ""


ORDER = TypeAdapter(Order)
REPLY = TypeAdapter(Reply)

_running: "weakref.WeakSet[Fetching]" = weakref.WeakSet()


def end_all() -> None:
    """End all downloads of this process, so that other workers can continue them at once."""
    for fetching in tuple(_running):
        fetching.end()


class Fetching:
    """Looks on the disk, and starts a child for what is missing; starts no thread.

    Args:
        wanted: directories and repositories.
        places: where they may lie.
        environ: environment of the child.
        newest: ask the hub whether what is on the volume is still the newest.
    """

    def __init__(
        self,
        wanted: Sequence[Wanted],
        places: Places,
        environ: Mapping[str, str],
        newest: bool = False,
    ) -> None:
        results = [resolve(item, places) for item in wanted]
        found = [result for result in results if isinstance(result, Found)]
        # Only what was downloaded can have a newer commit.
        settled = [result for result in found if not (newest and result.origin is Origin.VOLUME)]
        self._found = {result.wanted: result for result in settled}
        missing = [item for item in wanted if item not in self._found]
        order = Order(missing, places, newest, environ.get(HUB_TOKEN, ""))
        self._child = _start_child(order, without_secrets(environ)) if missing else None
        _running.add(self)

    @property
    def on_disk(self) -> list[Found]:
        """What was found at once; nothing while something else is downloaded."""
        return [] if self._child else [*self._found.values()]

    def result(self) -> dict[Wanted, Found]:
        """Wait for the child, if there is one; return where everything is.

        Raises:
            Unavailable: something is unavailable.
            MachineUnfit: the child ended without a reply.
        """
        child = self._child
        if child and child.stdout:
            content = child.stdout.read()
            self.close()
            try:
                reply = REPLY.validate_json(content)
            except ValidationError:
                raise MachineUnfit(_cause(child.returncode)) from None
            if reply.reason:
                raise Unavailable(reply.reason, reply.problem, reply.remedy)
            self._found |= {found.wanted: found for found in reply.found}
        return self._found

    def close(self) -> None:
        """End the child, if it still runs, and release what it took."""
        self.end()
        child, self._child = self._child, None
        if child and child.stdout:
            child.stdout.close()

    def end(self) -> None:
        """End the child. Safe in a signal handler while ``result`` blocks."""
        child = self._child
        if child is None:
            return
        child.terminate()
        try:
            child.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _start_child(order: Order, environ: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    path = [str(_SOURCES), environ.get("PYTHONPATH", "")]
    child = subprocess.Popen(
        # -P: nothing is imported from the current directory.
        with_parent.command(sys.executable, "-P", "-m", "worker.store.download"),
        env={**_DEFAULTS, **environ, "PYTHONPATH": ":".join(filter(None, path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin  # for the type checker: it is a pipe
    # If the child has ended already, `result` says so.
    with contextlib.suppress(BrokenPipeError), child.stdin:
        child.stdin.write(ORDER.dump_json(order))
    return child


def _cause(status: int) -> str:
    if status == -signal.SIGKILL:
        return "The download was killed before it was complete: perhaps there is too little memory."
    return f"The download ended before it was complete (status {status}): the log says why."
