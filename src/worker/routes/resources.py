"""The resources that routes use: the engines, the settings, the volume's records."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from worker.batches.finish import OutputFactory
from worker.batches.store import Batches
from worker.batches.window import SlotWindow
from worker.engine import Engines
from worker.errors import InvalidInput
from worker.long_work.attempt import Attempt
from worker.long_work.kinds import KINDS, WorkReference
from worker.long_work.record import Record
from worker.long_work.runner import WorkLine
from worker.process.concurrency import max_jobs_from_queue
from worker.receipts import Receipts
from worker.settings import Settings
from worker.volume import Volume
from worker.volume.links import SignedLinks

if TYPE_CHECKING:
    # Imported on first use, since most workers never run a fine-tune.
    from worker.fine_tunes.record import FineTunes
    from worker.fine_tunes.training_setup import TrainingSetup

# Starts a job that runs long work, here or on the endpoint, and returns whether it has started.
StartWork = Callable[[WorkReference], Awaitable[bool]]


TRAINING_OFF = (
    "This worker trains no adapters (FINE_TUNE=off, the default on a GPU): send the job to an "
    "endpoint whose workers are started with --train, with the same volume, or set "
    "FINE_TUNE=exclusive, with which the engine frees its memory for a training and can't answer "
    "until it ends, or FINE_TUNE=beside where GPU_MEMORY_UTILIZATION leaves enough memory."
)


class Resources:
    """The engines of a worker, its settings, and its records on the volume.

    Args:
        engines: The loaded engines.
        settings: The worker's settings.
        count_other_requests: Counts the requests in the engine that belong to no batch.
        start_work: Starts a job that runs long work. If None, callers have to send such jobs.
        outputs: Factories of extra batch outputs; see ``Batches``.
    """

    def __init__(
        self,
        engines: Engines,
        settings: Settings,
        count_other_requests: Callable[[], int] = lambda: 0,
        start_work: StartWork | None = None,
        outputs: Mapping[str, OutputFactory] = MappingProxyType({}),
    ) -> None:
        self.engines = engines
        self.settings = settings
        self.batches = Batches(settings, outputs)
        self.receipts = Receipts(engines, settings)
        # Limits the number of batch lines that this worker answers concurrently.
        self.window = SlotWindow(
            max_jobs_from_queue(settings.batch_concurrency, engines.base_model.slots),
            count_other_requests,
        )
        # The lines in which jobs for long work wait for this worker, by their keys in ``KINDS``.
        self.lines = {key: WorkLine(kind.places) for key, kind in KINDS.items()}
        # Signed URLs of files, for the HTTP server.
        self.links = SignedLinks(Volume.from_settings(settings))
        self._start_work = start_work
        # Time at which the worker began to stop (``time.monotonic``); infinite before that.
        self.shutdown_at = math.inf

    def stop_long_work(self) -> None:
        """End the attempts at long work soon, because the worker is stopping. Thread-safe."""
        self.shutdown_at = time.monotonic()
        for line in self.lines.values():
            line.close()

    def make_attempt(self, work: Record, time_limit: float) -> Attempt:
        """Return an attempt at long work for ``time_limit`` seconds, less if the worker stops."""
        return Attempt(work, time_limit, lambda: self.shutdown_at)

    @cached_property
    def fine_tunes(self) -> "FineTunes":
        """The fine-tunes on the volume."""
        from worker.fine_tunes.record import FineTunes  # noqa: PLC0415 - only for fine-tunes

        return FineTunes(self.settings, self.batches.files)

    @property
    def can_send_jobs(self) -> bool:
        """Whether this worker can try to start jobs that run long work."""
        return self._start_work is not None

    async def wait_unless_stopping(self, seconds: float) -> None:
        """Wait, but at most a second longer after the worker has begun to stop."""
        for _ in range(math.ceil(seconds)):
            if time.monotonic() >= self.shutdown_at:
                return
            await asyncio.sleep(min(seconds, 1.0))

    async def start_long_jobs(self, work: WorkReference, jobs: int = 1) -> dict[str, Any]:
        """Start jobs that run long work.

        Returns:
            An empty dict; on failure ``run_with``, the input of a job that the caller has to send.
        """
        start_work = self._start_work
        has_started = start_work is not None and all([await start_work(work) for _ in range(jobs)])
        return {} if has_started else work.run_with_field

    @property
    def training_setup(self) -> "TrainingSetup":
        """The setup for training adapters.

        Raises:
            InvalidInput: This worker does not train.
        """
        self.check_training_enabled()
        return self._training_setup

    @cached_property
    def _training_setup(self) -> "TrainingSetup":
        from worker.fine_tunes.training_setup import TrainingSetup  # noqa: PLC0415 - only for trainings

        return TrainingSetup(
            self.fine_tunes,
            self.engines.base_model,
            self.settings,
            reserve_memory=self.engines.suspend if self._training_mode == "exclusive" else None,
            low_priority=self._training_mode == "beside",
        )

    def check_training_enabled(self) -> None:
        """Check that this worker trains adapters.

        Raises:
            InvalidInput: This worker does not train.
        """
        if self._training_mode == "off":
            raise InvalidInput(TRAINING_OFF)

    @property
    def _training_mode(self) -> str:
        if not self.engines.has_engine:
            return "here"
        on_cpu = self.engines.base_model.model.device == "cpu"
        return self.settings.fine_tune or ("beside" if on_cpu else "off")

    def list_unfinished_work(self) -> list[WorkReference]:
        """Return the unfinished work that this worker can run, the oldest of each kind first.

        Reads files, so call it in a thread.
        """
        return [
            record.work_reference
            for kind in KINDS.values()
            if (self._training_mode != "off" if kind.needs_training else self.engines.has_engine)
            for record in kind.load_records(self.settings).list_unfinished()
        ]
