"""Obtains artifacts: finds those on the disk, and downloads the others in a child process.

The child process, ``python -m worker.store.download``, reads a ``FetchOrder`` from standard input
and writes a ``FetchReply`` to standard output, both as JSON.
"""

import contextlib
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from worker.children import Child, StopMode, add_source_path, module_command
from worker.errors import MachineUnfit
from worker.settings.environment import HUB_TOKEN, environ_without_secrets
from worker.store.places import Places, resolve_on_disk
from worker.store.refusals import ModelUnavailable, Reason
from worker.store.snapshot import Artifact, ArtifactLocation, Origin

# Environment variables of the child process that the operator may override.
_DEFAULTS = {
    # Otherwise huggingface_hub requests a list of coding agents, to report which one runs it.
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


@dataclass(frozen=True)
class FetchOrder:
    """The artifacts that the child process obtains.

    ``refresh`` has the same meaning as in ``download.obtain_artifact``. The hub's token is passed
    here, since other processes could read it in the environment.
    """

    artifacts: list[Artifact]
    places: Places
    refresh: bool = False
    token: str = ""


@dataclass(frozen=True)
class FetchReply:
    """The locations of all artifacts of the order, in its order, or the unavailable artifact.

    ``reason`` is the name of a ``Reason``.
    """

    locations: list[ArtifactLocation]
    unavailable: Artifact | None = None
    reason: str = ""
    detail: str = ""


ORDER_ADAPTER = TypeAdapter(FetchOrder)
REPLY_ADAPTER = TypeAdapter(FetchReply)


class ModelFetcher:
    """Finds artifacts on the disk, and obtains missing ones in a child process, without threads.

    ``environ`` is the child's environment. With ``refresh``, the child checks on the hub whether
    artifacts on the volume are still the newest.
    """

    def __init__(
        self,
        artifacts: Sequence[Artifact],
        places: Places,
        environ: Mapping[str, str],
        refresh: bool = False,
    ) -> None:
        results = [resolve_on_disk(item, places) for item in artifacts]
        locations = [result for result in results if isinstance(result, ArtifactLocation)]
        # The child checks artifacts on the volume: only they can have a newer commit.
        current = [one for one in locations if not (refresh and one.origin is Origin.VOLUME)]
        self._locations = {location.artifact: location for location in current}
        missing = [item for item in artifacts if item not in self._locations]
        self._child: Child | None = None
        if missing:
            self._child = Child(
                module_command("worker.store.download"),
                # It releases its leases on a signal, so that other workers continue immediately.
                StopMode.TERMINATE,
                add_source_path({**_DEFAULTS, **environ_without_secrets(environ)}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert self._child.stdin  # for the type checker: it is a pipe
            order = FetchOrder(missing, places, refresh, environ.get(HUB_TOKEN, ""))
            # If the child has already exited, ``wait_for_locations`` reports it.
            with contextlib.suppress(BrokenPipeError), self._child.stdin as stdin:
                stdin.write(ORDER_ADAPTER.dump_json(order))

    @property
    def locations_on_disk(self) -> list[ArtifactLocation]:
        """The locations of all artifacts; empty while the child process obtains any of them."""
        return [] if self._child else [*self._locations.values()]

    def wait_for_locations(self) -> dict[Artifact, ArtifactLocation]:
        child = self._child
        if child and child.stdout:
            content = child.stdout.read()
            self.close()
            try:
                reply = REPLY_ADAPTER.validate_json(content)
            except ValidationError:
                status = child.returncode
                text = f"ended before it was complete (status {status}): the log says why."
                if status == -signal.SIGKILL:
                    text = "was killed before it was complete: perhaps there is too little memory."
                raise MachineUnfit(f"The download {text}") from None
            if reply.unavailable:
                raise ModelUnavailable(reply.unavailable, Reason[reply.reason], reply.detail)
            self._locations |= {found.artifact: found for found in reply.locations}
        return self._locations

    def close(self) -> None:
        child, self._child = self._child, None
        if child and child.stdout:
            child.stop()
            child.stdout.close()
