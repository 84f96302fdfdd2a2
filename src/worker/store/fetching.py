"""Obtains what is wanted: what is on the disk at once, the rest through a child process.

The child is ``python -m worker.store.download``. It gets an ``Order`` on standard input, and writes
a ``Reply`` to standard output, both as JSON.
"""

import contextlib
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from worker.children import Child, Ending, module, with_sources
from worker.errors import MachineUnfit
from worker.settings.environment import HUB_TOKEN, without_secrets
from worker.store.places import Places
from worker.store.refusals import Reason, Unavailable
from worker.store.resolve import resolve
from worker.store.snapshot import Found, Origin, Wanted

# Variables of the child that the operator may override.
_DEFAULTS = {
    # Otherwise huggingface_hub first asks the hub for a list of coding agents, to report its own.
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


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
    """Where everything was found, in the order's order; or what is unavailable.

    ``reason`` is the name of a ``Reason``.
    """

    found: list[Found]
    unavailable: Wanted | None = None
    reason: str = ""
    detail: str = ""


ORDER = TypeAdapter(Order)
REPLY = TypeAdapter(Reply)


class Fetching:
    """Looks on the disk, and starts a child for what is missing; starts no thread.

    The child has ``environ``. With ``newest`` the hub is asked whether what is on the volume is
    still the newest.
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
            if reply.unavailable:
                raise Unavailable(reply.unavailable, Reason[reply.reason], reply.detail)
            self._found |= {found.wanted: found for found in reply.found}
        return self._found

    def close(self) -> None:
        """End the child, if it still runs, and release what it took."""
        child, self._child = self._child, None
        if child and child.stdout:
            child.end()
            child.stdout.close()


def _start_child(order: Order, environ: Mapping[str, str]) -> Child:
    child = Child(
        module("worker.store.download"),
        # It releases its leases, so that other workers can continue at once.
        Ending.ASKED,
        with_sources({**_DEFAULTS, **environ}),
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
