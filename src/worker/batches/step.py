"""A step of a batch: plans its input, answers one of its shards, or ends it."""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

from worker.batches.lines import INPUT_CHANGED, BatchPlan, plan_input
from worker.batches.record import PLAN, Batch, EndStatus
from worker.batches.shard import AnswerRequest, ShardRun, StopReason
from worker.batches.store import Batches
from worker.batches.window import SlotWindow
from worker.errors import NoSuchObject, OnOtherVolume
from worker.long_work.runner import Attempt
from worker.progress import Progress
from worker.volume import translate_os_errors
from worker.volume.lease import Lease

log = logging.getLogger(__name__)

# Seconds before the end of a job's time from which on no line begins, so that running lines can
# finish.
WIND_DOWN_S = 30.0


class BatchStep:
    """One job's work on a batch; other jobs may work on the same batch. Use on one event loop.

    Args:
        batches: Batches of the volume.
        batch: Batch to run.
        answer_request: Answers the request in a line.
        window: Limits the lines that run concurrently.
        progress: Progress that this step updates.
    """

    def __init__(
        self,
        batches: Batches,
        batch: Batch,
        answer_request: AnswerRequest,
        window: SlotWindow,
        progress: Progress,
    ) -> None:
        self._batches = batches
        self._batch = batch
        self._answer_request = answer_request
        self._window = window
        self._progress = progress

    async def __call__(self, attempt: Attempt) -> bool:
        """Do a part of the work; return False if other workers are doing all remaining parts.

        Raises:
            WorkerError: The engine is dead, or the volume fails.
        """
        done = await self._do_next_part(attempt)
        await self._update_progress()
        return done

    async def _do_next_part(self, attempt: Attempt) -> bool:
        plan = await asyncio.to_thread(lambda: self._batch.plan)
        if plan is None:
            return await self._run_exclusively(attempt, "plan", self._plan_batch)
        unfinished = await asyncio.to_thread(self._batch.unfinished_shard_indexes, plan)
        if status := await asyncio.to_thread(self._batch.stop_reason):
            # The end waits for other workers, which still write lines that they have finished.
            idle = [await self._is_lease_free(attempt, f"shard-{index}") for index in unfinished]
            end = partial(self._end_batch, plan, status)
            return all(idle) and await self._run_exclusively(attempt, "end", end)
        if not unfinished:
            end = partial(self._end_batch, plan, "completed")
            return await self._run_exclusively(attempt, "end", end)
        for index in unfinished:
            async with attempt.acquire_lease(f"shard-{index}") as lease:
                if lease is not None and await asyncio.to_thread(self._is_shard_open, plan, index):
                    await self._run_shard(attempt, plan, index, lease)
                    return True
        return False

    async def _run_exclusively(self, attempt: Attempt, name: str, work: Callable[[], None]) -> bool:
        """Call a function in a thread under a lease; return False if others have the lease."""
        async with attempt.acquire_lease(name) as lease:
            if lease is not None:
                await asyncio.to_thread(work)
        return lease is not None

    async def _is_lease_free(self, attempt: Attempt, name: str) -> bool:
        """Return whether no living worker has the lease with this name."""
        if not await asyncio.to_thread(self._batch.is_leased, name):
            return True
        async with attempt.acquire_lease(name) as lease:
            return lease is not None

    def _is_shard_open(self, plan: BatchPlan, index: int) -> bool:
        """Return whether a shard is unfinished and the batch doesn't have to stop."""
        return self._batch.stop_reason() is None and index in self._batch.unfinished_shard_indexes(
            plan
        )

    def _end_batch(self, plan: BatchPlan, status: EndStatus) -> None:
        batch = self._batch
        if batch.has_ended() or (status == "completed" and not batch.verify_or_reopen_shards(plan)):
            return
        result = self._batches.end(batch, status)
        log.info("batch %s: %s", batch.id, result.status)

    def _plan_batch(self) -> None:
        batch, files, request = self._batch, self._batches.files, self._batch.request
        if batch.has_file(PLAN) or batch.has_ended():
            return
        now = int(time.time())
        try:
            path = files.content_path(files.get(request.input_file_id, include_expired=True))
        except (NoSuchObject, OnOtherVolume):
            self._batches.fail(batch, [INPUT_CHANGED])
            return
        with translate_os_errors():
            plan = plan_input(
                path, request.endpoint, self._batches.limits, request.data_parallelism, now
            )
        if isinstance(plan, BatchPlan):
            batch.write_file(PLAN, plan)
        else:
            self._batches.fail(batch, plan)

    async def _run_shard(self, attempt: Attempt, plan: BatchPlan, index: int, lease: Lease) -> None:
        path = await asyncio.to_thread(self._batches.find_unchanged_input, self._batch, plan)
        stop = StopReason.INPUT_CHANGED
        if path is not None:
            run = ShardRun(
                batch=self._batch,
                input_path=path,
                plan=plan,
                max_line_bytes=self._batches.limits.max_line_bytes,
                shard=plan.shards[index],
                part_name=f"{index}.{lease.owner}",
                answer_request=self._answer_request,
                window=self._window,
                reserve=self._batches.files.quota.reserve,
                report_progress=self._update_progress,
            )
            stop = await run.run(attempt, lease.lost.is_set)
        if stop is StopReason.DONE:
            await asyncio.to_thread(self._batch.mark_shard_done, index)
        if stop is StopReason.INPUT_CHANGED:
            await asyncio.to_thread(self._batch.decide_ending, "failed")

    async def _update_progress(self) -> None:
        counts = await asyncio.to_thread(self._batch.counts)
        done = counts.completed + counts.failed
        self._progress.update(done=done, total=counts.total, failed=counts.failed)
