"""What routes answer with: the engines, the settings, and how long work is started."""

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from worker.batches.request import MakeOutput
from worker.batches.store import Batches
from worker.batches.window import Window
from worker.concurrency import jobs_at_once
from worker.engine import Engines
from worker.errors import InvalidInput
from worker.fine_tunes import results
from worker.fine_tunes.child import COMMAND
from worker.fine_tunes.estimate import check_memory
from worker.fine_tunes.given import Given
from worker.fine_tunes.store import FineTunes
from worker.fine_tunes.workshop import Bench, Workshop
from worker.job.long_work import LongWork
from worker.settings import Settings
from worker.volume import Volume, adapters
from worker.volume.links import Links

# Starts to run some work: in this process, or by a job that is sent to the endpoint.
# Returns whether that could be done.
Start = Callable[[LongWork], Awaitable[bool]]


TRAINS_NONE = (
    "This worker trains no adapters (FINE_TUNE=off, the default on a GPU): send the job to an "
    "endpoint whose workers are started with --train, with the same volume, or set "
    "FINE_TUNE=exclusive, with which the engine makes room for a training and answers nothing "
    "meanwhile, or FINE_TUNE=beside where GPU_MEMORY_UTILIZATION leaves enough memory."
)


@dataclass(frozen=True, slots=True)
class Resources:
    """What a worker has.

    Args:
        engines: loaded.
        settings: the worker's.
        batches: of the volume, and files.
        fine_tunes: likewise.
        window: how many lines of batches are answered at once.
        links: makes addresses of files, for a server.
        bench: where one adapter at a time is trained.
        start: starts long work; None: somebody has to send the job that runs it.
    """

    engines: Engines
    settings: Settings
    batches: Batches
    fine_tunes: FineTunes
    window: Window
    links: Links
    bench: Bench
    start: Start | None = None

    @classmethod
    def of(
        cls,
        engines: Engines,
        settings: Settings,
        others: Callable[[], int] = lambda: 0,
        start: Start | None = None,
        outputs: Mapping[str, MakeOutput] = MappingProxyType({}),
    ) -> "Resources":
        """Return what a worker has.

        Args:
            engines: loaded.
            settings: the worker's.
            others: returns how many requests that belong to no batch are in the engine.
            start: as above.
            outputs: see ``Batches``.
        """
        lines = jobs_at_once(settings.batch_concurrency, engines.base.slots)
        links = Links(Volume.of(settings))
        return cls(
            engines=engines,
            settings=settings,
            batches=Batches.of(settings, outputs),
            fine_tunes=FineTunes.of(settings),
            window=Window(lines, others),
            links=links,
            bench=Bench(),
            start=start,
        )

    async def begin(self, work: LongWork, jobs: int = 1) -> dict[str, Any]:
        """Start jobs that run some work; return what callers have to send, if this can't be."""
        start = self.start
        going = start is not None and all([await start(work) for _ in range(jobs)])
        return {} if going else work.run_with

    @property
    def training(self) -> Workshop:
        """What adapters are trained with.

        Raises:
            InvalidInput: this worker trains none.
        """
        base, settings = self.engines.base, self.settings
        self.check_training()
        return Workshop(
            spec=Given(self.fine_tunes, base.model, settings).spec,
            fits=check_memory,
            check=base.check_adapter,
            results=partial(results.write, self.fine_tunes.files),
            adapters=adapters.directory(settings.base_path),
            closed=lambda: self.window.closed_at < math.inf,
            command=COMMAND,
            bench=self.bench,
            nice=self._trains == "beside",
            room=self.engines.aside if self._trains == "exclusive" else None,
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
        batches = self.batches.unfinished() if self.engines.serve else []
        fine_tunes = self.fine_tunes.unfinished() if self._trains != "off" else []
        return [*(one.work for one in batches), *(one.work for one in fine_tunes)]
