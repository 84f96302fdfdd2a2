"""What routes answer with: the engines, the settings, and how long work is started."""

import math
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from worker.batches.finish import MakeOutput
from worker.batches.store import Batches
from worker.batches.window import Window
from worker.engine import Engines
from worker.errors import InvalidInput
from worker.long_work.attempt import Attempt
from worker.long_work.kinds import KINDS, LongWork
from worker.long_work.record import Record
from worker.process.concurrency import jobs_at_once
from worker.settings import Settings
from worker.volume import Volume
from worker.volume.links import Links

if TYPE_CHECKING:
    # A worker that meets no fine-tune does not import these.
    from worker.fine_tunes.record import FineTunes
    from worker.fine_tunes.workshop import Workshop

# Starts to run some work: in this process, or by a job that is sent to the endpoint.
# Returns whether that could be done.
Start = Callable[[LongWork], Awaitable[bool]]


TRAINS_NONE = (
    "This worker trains no adapters (FINE_TUNE=off, the default on a GPU): send the job to an "
    "endpoint whose workers are started with --train, with the same volume, or set "
    "FINE_TUNE=exclusive, with which the engine makes room for a training and answers nothing "
    "meanwhile, or FINE_TUNE=beside where GPU_MEMORY_UTILIZATION leaves enough memory."
)


class Resources:
    """What a worker has.

    Args:
        engines: loaded.
        settings: the worker's.
        others: returns how many requests that belong to no batch are in the engine.
        start: starts long work; None: somebody has to send the job that runs it.
        outputs: see ``Batches``.
    """

    def __init__(
        self,
        engines: Engines,
        settings: Settings,
        others: Callable[[], int] = lambda: 0,
        start: Start | None = None,
        outputs: Mapping[str, MakeOutput] = MappingProxyType({}),
    ) -> None:
        self.engines = engines
        self.settings = settings
        self.batches = Batches(settings, outputs)
        # How many lines of batches are answered at once.
        self.window = Window(jobs_at_once(settings.batch_concurrency, engines.base.slots), others)
        # Makes addresses of files, for a server.
        self.links = Links(Volume.of(settings))
        self._start = start
        # When the worker began to stop, by ``time.monotonic``.
        self.closed_at = math.inf

    def close(self) -> None:
        """Begin no further part of long work: the worker is being stopped. From any thread."""
        self.closed_at = time.monotonic()

    def attempt(self, work: Record, seconds: float) -> Attempt:
        """Return a job's attempt at some work, which ends early if the worker is stopped."""
        return Attempt(work, seconds, lambda: self.closed_at)

    @cached_property
    def fine_tunes(self) -> "FineTunes":
        """Those of the volume."""
        from worker.fine_tunes.record import FineTunes  # noqa: PLC0415 - see above

        return FineTunes(self.settings)

    async def begin(self, work: LongWork, jobs: int = 1) -> dict[str, Any]:
        """Start jobs that run some work; return what callers have to send, if this can't be."""
        start = self._start
        going = start is not None and all([await start(work) for _ in range(jobs)])
        return {} if going else work.run_with

    @property
    def training(self) -> "Workshop":
        """What adapters are trained with.

        Raises:
            InvalidInput: this worker trains none.
        """
        self.check_training()
        return self._workshop

    @cached_property
    def _workshop(self) -> "Workshop":
        from worker.fine_tunes.workshop import Workshop  # noqa: PLC0415 - see above

        return Workshop(
            self.fine_tunes,
            self.engines.base,
            self.settings,
            room=self.engines.aside if self._trains == "exclusive" else None,
            nice=self._trains == "beside",
        )

    def check_training(self) -> None:
        """Check that adapters are trained here.

        Raises:
            InvalidInput: they are not.
        """
        if self._trains == "off":
            raise InvalidInput(TRAINS_NONE)

    @property
    def _trains(self) -> str:
        if not self.engines.serve:
            return "here"
        on_cpu = self.engines.base.model.device == "cpu"
        return self.settings.fine_tune or ("beside" if on_cpu else "off")

    def unfinished(self) -> list[LongWork]:
        """Return what jobs have to go on with here, the oldest of each kind first; for threads."""
        return [
            one.work
            for kind in KINDS.values()
            if (self._trains != "off" if kind.trains else self.engines.serve)
            for one in kind.load_records(self.settings).unfinished()
        ]
