"""What routes answer with: the engines, the settings, and how a batch is started."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from worker.batches.store import Batches
from worker.batches.window import Window
from worker.concurrency import jobs_at_once
from worker.engine import Engines
from worker.settings import Settings

# Starts to run a batch, by its id: in this process, or by a job that is sent to the endpoint.
# Returns whether that could be done.
Start = Callable[[str], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Resources:
    """What a worker has.

    Args:
        engines: loaded.
        settings: the worker's.
        batches: of the volume, and files.
        window: how many lines of batches are answered at once.
        start: starts a batch; None: somebody has to send the job that runs it.
    """

    engines: Engines
    settings: Settings
    batches: Batches
    window: Window
    start: Start | None = None

    @classmethod
    def of(
        cls,
        engines: Engines,
        settings: Settings,
        others: Callable[[], int] = lambda: 0,
        start: Start | None = None,
    ) -> "Resources":
        """Return what a worker has.

        Args:
            engines: loaded.
            settings: the worker's.
            others: returns how many requests that belong to no batch are in the engine.
            start: as above.
        """
        lines = jobs_at_once(settings.batch_concurrency, engines.main.slots)
        return cls(engines, settings, Batches.of(settings), Window(lines, others), start)
