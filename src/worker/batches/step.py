"""A step of a batch: checks its input, answers a shard of it, or ends it."""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

from worker.batches.lines import INPUT_CHANGED, Plan, planned
from worker.batches.record import PLAN, Batch, End
from worker.batches.shard import Ask, ShardRun, Stop
from worker.batches.store import Batches
from worker.batches.window import Window
from worker.errors import NoSuchObject
from worker.long_work.attempt import Attempt
from worker.volume import failures
from worker.volume.lease import Lease

log = logging.getLogger(__name__)

# Seconds before the end of a job's time in which no line begins, and those that run may end.
SPARE_S = 30.0


class BatchStep:
    """One job's work on a batch; others may share it. Use on one loop.

    Args:
        batches: of the volume.
        batch: to run.
        ask: answers a line.
        window: how many lines may be answered at once.
        progress: updated while it runs; read from any thread.
    """

    def __init__(
        self,
        batches: Batches,
        batch: Batch,
        ask: Ask,
        window: Window,
        progress: dict[str, float],
    ) -> None:
        self._batches = batches
        self._batch = batch
        self._ask = ask
        self._window = window
        self._progress = progress

    async def __call__(self, attempt: Attempt) -> bool:
        """Do a part of the work; return False if others have all that is left of it.

        Raises:
            WorkerError: the engine is dead, or the volume fails.
        """
        done = await self._part(attempt)
        await self._count()
        return done

    async def _part(self, attempt: Attempt) -> bool:
        plan = await asyncio.to_thread(lambda: self._batch.plan)
        if plan is None:
            return await self._alone(attempt, "plan", self._make_plan)
        left = await asyncio.to_thread(self._batch.shards_left, plan)
        if status := await asyncio.to_thread(self._batch.stopping):
            # Others write what they have finished, and begin nothing more.
            quiet = [await self._quiet(attempt, f"shard-{index}") for index in left]
            end = partial(self._end, plan, status)
            return all(quiet) and await self._alone(attempt, "end", end)
        if not left:
            return await self._alone(attempt, "end", partial(self._end, plan, "completed"))
        for index in left:
            async with attempt.lease(f"shard-{index}") as lease:
                if lease is not None and await asyncio.to_thread(self._to_do, plan, index):
                    await self._run_shard(attempt, plan, index, lease)
                    return True
        return False

    async def _alone(self, attempt: Attempt, name: str, work: Callable[[], None]) -> bool:
        """Do some work under a lease; return False if another worker has it."""
        async with attempt.lease(name) as lease:
            if lease is not None:
                await asyncio.to_thread(work)
        return lease is not None

    async def _quiet(self, attempt: Attempt, name: str) -> bool:
        """Return whether no living worker has a lease."""
        if not await asyncio.to_thread(self._batch.held, name):
            return True
        async with attempt.lease(name) as lease:
            return lease is not None

    def _to_do(self, plan: Plan, index: int) -> bool:
        """Return whether a shard is still to be done, now that its lease is held."""
        return self._batch.stopping() is None and index in self._batch.shards_left(plan)

    def _end(self, plan: Plan, status: End) -> None:
        batch = self._batch
        if batch.ended() or (status == "completed" and not batch.complete(plan)):
            return
        result = self._batches.end(batch, status)
        log.info("batch %s: %s", batch.id, result.status)

    def _make_plan(self) -> None:
        batch, files, request = self._batch, self._batches.files, self._batch.request
        if batch.has(PLAN) or batch.ended():
            return
        now = int(time.time())
        try:
            path = files.content(files.get(request.input_file_id, expired=True))
        except NoSuchObject:
            self._batches.fail(batch, [INPUT_CHANGED])
            return
        with failures():
            found = planned(
                path, request.endpoint, self._batches.limits, request.data_parallelism, now
            )
        if isinstance(found, Plan):
            batch.write(PLAN, found)
        else:
            self._batches.fail(batch, found)

    async def _run_shard(self, attempt: Attempt, plan: Plan, index: int, lease: Lease) -> None:
        path = await asyncio.to_thread(self._batches.input_of, self._batch, plan)
        stop = Stop.CHANGED
        if path is not None:
            run = ShardRun(
                batch=self._batch,
                path=path,
                plan=plan,
                longest=self._batches.limits.bytes_of_a_line,
                shard=plan.shards[index],
                name=f"{index}.{lease.owner}",
                ask=self._ask,
                window=self._window,
                progress=self._count,
            )
            stop = await run.run(attempt, lease.lost.is_set)
        if stop is Stop.DONE:
            await asyncio.to_thread(self._batch.finish_shard, index)
        if stop is Stop.CHANGED:
            await asyncio.to_thread(self._batch.decide, "failed")

    async def _count(self) -> None:
        """Count what is durable."""
        counts = await asyncio.to_thread(self._batch.counts)
        done = counts.completed + counts.failed
        self._progress.update(done=done, total=counts.total, failed=counts.failed)
