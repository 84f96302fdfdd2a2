"""What routes answer with: the engines, the settings, and how a batch is started."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from worker.engine import Engines
from worker.settings import Settings

# Starts to run a batch, by its id: in this process, or by a job that is sent to the endpoint.
Start = Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Resources:
    """What a worker has.

    Args:
        engines: loaded.
        settings: the worker's.
        start: starts a batch; None: somebody has to send the job that runs it.
    """

    engines: Engines
    settings: Settings
    start: Start | None = None
