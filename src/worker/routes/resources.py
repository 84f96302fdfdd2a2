"""The resources that routes use: the engines, the settings, the volume's records."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from worker.batches.record import Batches, OutputFactory
from worker.batches.run import SlotWindow
from worker.engine import Engines
from worker.errors import InvalidInput
from worker.long_work.job_list import JobList, OrphanedWork
from worker.long_work.records import PAUSED, Record, WorkReference
from worker.long_work.runner import Turn, WorkLine
from worker.process.concurrency import max_jobs_from_queue
from worker.receipts import Receipts
from worker.routes.kinds import KINDS, existing_record_collections
from worker.settings import Settings
from worker.volume import Volume
from worker.volume.links import SignedLinks

if TYPE_CHECKING:
    # Imported on first use, since most workers never run a fine-tune.
    from worker.fine_tunes.record import FineTunes

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

    ``count_other_requests`` counts the requests in the engine that belong to no batch.
    ``start_work`` starts a job that runs long work; if None, callers have to send such jobs.
    ``outputs`` are factories of extra batch outputs; see ``Batches``.
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
        self._job_list = JobList(self.batches.volume)
        self._start_work = start_work
        # Time at which the worker began to stop (``time.monotonic``); infinite before that.
        self.shutdown_at = math.inf

    def stop_long_work(self) -> None:
        """End the turns at long work soon, because the worker is stopping. Thread-safe."""
        self.shutdown_at = time.monotonic()
        for line in self.lines.values():
            line.close()

    @contextlib.asynccontextmanager
    async def open_turn(
        self, work: Record, time_limit: float, *, in_background: bool
    ) -> AsyncGenerator[Turn, None]:
        """Yield a turn at long work of ``time_limit`` seconds, less if the worker stops.

        Unless it is in the background, the work is on the list of those that have a job.
        """
        turn = Turn(work, time_limit, lambda: self.shutdown_at, in_background=in_background)
        async with contextlib.nullcontext() if in_background else self._job_list.add(work.id):
            yield turn

    def describe_run(self, work: Record) -> dict[str, Any]:
        """Return the fields of a response that say who runs long work; blocks for files.

        ``run_state`` is "running" while a worker runs it, "queued" while it waits for its turn at a
        worker or its job is on its way, "waiting" if no worker runs it, and null if none should.
        ``run_with`` is there if the caller has to send the job.
        """
        if work.has_ended() or work.stop_reason() == PAUSED:
            return {"run_state": None}
        has_job = self._job_list.has_job(work)
        state = "running" if work.is_running() else "queued" if has_job else "waiting"
        run_with = {} if has_job or self.can_send_jobs else work.work_reference.run_with_field
        return {"run_state": state, **run_with}

    @cached_property
    def fine_tunes(self) -> "FineTunes":
        from worker.fine_tunes.record import FineTunes  # noqa: PLC0415 - only for fine-tunes

        return FineTunes(self.settings, self.batches.files)

    @property
    def can_send_jobs(self) -> bool:
        return self._start_work is not None

    async def wait_unless_stopping(self, seconds: float) -> None:
        """Wait, but at most a second longer after the worker has begun to stop."""
        for _ in range(math.ceil(seconds)):
            if time.monotonic() >= self.shutdown_at:
                return
            await asyncio.sleep(min(seconds, 1.0))

    async def start_long_jobs(self, work: WorkReference, jobs: int = 1) -> dict[str, Any]:
        """Start jobs that run long work.

        Returns an empty dict, or on failure ``run_with``, the input of a job that the caller sends.
        """
        start_work = self._start_work
        has_started = start_work is not None and all([await start_work(work) for _ in range(jobs)])
        return {} if has_started else work.run_with_field

    def check_training_enabled(self) -> None:
        """Raise ``InvalidInput`` unless this worker trains adapters."""
        if self.training_mode == "off":
            raise InvalidInput(TRAINING_OFF)

    @property
    def training_mode(self) -> str:
        """How this worker trains: "here", without an engine; "beside" it; "exclusive"; or "off".

        In the mode "exclusive", the engine is suspended.
        """
        if not self.engines.has_engine:
            return "here"
        on_cpu = self.engines.base_model.model.device == "cpu"
        return self.settings.fine_tune or ("beside" if on_cpu else "off")

    def list_unfinished_work(self) -> list[WorkReference]:
        """Return the unfinished work that this worker can run, the oldest of each kind first.

        Reads files, so call it in a thread.
        """
        return [record.work_reference for record in self._unfinished_records()]

    def list_orphans(self) -> list[OrphanedWork]:
        """Return the unfinished work that no worker runs; see ``JobList.find_orphans``."""
        return self._job_list.find_orphans(self._unfinished_records())

    def _unfinished_records(self) -> Iterator[Record]:
        trains, has_engine = self.training_mode != "off", self.engines.has_engine
        kinds = [
            kind
            for key, kind in KINDS.items()
            if key not in self.settings.disabled and (trains if kind.needs_training else has_engine)
        ]
        for records in existing_record_collections(self.settings, kinds):
            yield from records.list_unfinished()
