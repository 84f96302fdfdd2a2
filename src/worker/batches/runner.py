"""Runs a batch, from wherever it was left: checks its input, answers shards of it, ends it."""

import asyncio
import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path

from worker.batches.endings import INPUT_CHANGED, End
from worker.batches.finish import fail, finish, input_of
from worker.batches.lines import Plan, planned
from worker.batches.shard import Ask, ShardRun, Stop
from worker.batches.state import PLAN, Batch
from worker.batches.store import Batches
from worker.batches.window import Window
from worker.errors import NoSuchObject
from worker.volume import failures
from worker.volume.lease import LOOK_S, Lease
from worker.volume.turns import Turns

log = logging.getLogger(__name__)

# Seconds before the end of a job's time in which no line begins, and those that run may end.
SPARE_S = 30.0


@dataclass(slots=True)
class Progress:
    """How far a batch has come: read from any thread."""

    done: int = 0
    total: int = 0
    failed: int = 0

    def shown(self) -> dict[str, int]:
        return {"done": self.done, "total": self.total, "failed": self.failed}


class Runner:
    """One job's work on a batch; others may share it. Use on one loop.

    Args:
        batches: of the volume.
        batch: to run.
        ask: answers a line.
        window: how many lines may be answered at once.
        progress: updated while it runs.
    """

    def __init__(
        self, batches: Batches, batch: Batch, ask: Ask, window: Window, progress: Progress
    ) -> None:
        self.progress = progress
        self._batches = batches
        self._batch = batch
        self._ask = ask
        self._window = window
        self._deadline = math.inf
        self._turns = Turns(batch.leases, lambda: (progress.done, progress.total))
        self._last_count = 0.0

    async def run(self, seconds: float) -> bool:
        """Work until the batch has ended, or the job's time is over.

        Args:
            seconds: that the job may take.

        Returns:
            Whether it has ended.

        Raises:
            WorkerError: the engine is dead, or the volume fails: another job can go on.
        """
        self._deadline = time.monotonic() + seconds - SPARE_S
        while not await asyncio.to_thread(self._batch.ended):
            await self._count()
            if not await self._step():
                return False
        await self._count(now=True)
        return True

    async def _step(self) -> bool:
        """Do a piece of the work, or wait for those who hold what is left of it.

        Returns:
            False if the time is over.
        """
        plan = await asyncio.to_thread(lambda: self._batch.plan)
        if plan is None:
            async with self._turns.taken("plan") as lease:
                if lease:
                    await asyncio.to_thread(self._make_plan)
            return await self._waited(lease)
        left = await asyncio.to_thread(self._batch.shards_left, plan)
        if status := await asyncio.to_thread(self._batch.stopping):
            # Others write what they have finished, and begin nothing more.
            quiet = [await self._quiet(f"shard-{index}") for index in left]
            return await (self._finished(plan, status) if all(quiet) else self._waited(None))
        if not left:
            return await self._finished(plan, "completed")
        for index in left:
            async with self._turns.taken(f"shard-{index}") as lease:
                if lease is not None and await asyncio.to_thread(self._to_do, plan, index):
                    return await self._run_shard(plan, index, lease) is not Stop.TIME
        return await self._waited(None)

    def _to_do(self, plan: Plan, index: int) -> bool:
        """Return whether a shard is still to be done, now that its lease is held."""
        return self._batch.stopping() is None and index in self._batch.shards_left(plan)

    async def _quiet(self, name: str) -> bool:
        """Return whether no living worker has a lease."""
        if not await asyncio.to_thread(self._batch.held, name):
            return True
        async with self._turns.taken(name) as lease:
            return lease is not None

    async def _waited(self, lease: Lease | None) -> bool:
        if lease is None:
            await asyncio.sleep(LOOK_S)
        return time.monotonic() < min(self._deadline, self._window.closed_at)

    async def _finished(self, plan: Plan, status: End) -> bool:
        async with self._turns.taken("end") as lease:
            if lease:
                await asyncio.to_thread(self._finish, plan, status)
        return await self._waited(lease)

    def _finish(self, plan: Plan, status: End) -> None:
        batch = self._batch
        if batch.ended() or (status == "completed" and not batch.complete(plan)):
            return
        result = finish(self._batches, batch, status)
        log.info("batch %s: %s", batch.id, result.status)

    def _make_plan(self) -> None:
        batch, files, request = self._batch, self._batches.files, self._batch.request
        if batch.has(PLAN) or batch.ended():
            return
        now = int(time.time())
        try:
            path = files.content(files.get(request.input_file_id, expired=True))
        except NoSuchObject:
            fail(self._batches, batch, [INPUT_CHANGED])
            return
        with failures():
            found = planned(
                path, request.endpoint, self._batches.limits, request.data_parallelism, now
            )
        if isinstance(found, Plan):
            batch.write(PLAN, found)
        else:
            fail(self._batches, batch, found)

    async def _run_shard(self, plan: Plan, index: int, lease: Lease) -> Stop:
        path = await asyncio.to_thread(input_of, self._batches, self._batch, plan)
        stop = Stop.CHANGED if path is None else await self._answer(plan, index, lease, path)
        if stop is Stop.DONE:
            await asyncio.to_thread(self._batch.finish_shard, index)
        if stop is Stop.CHANGED:
            await asyncio.to_thread(self._batch.decide, "failed")
        return stop

    async def _answer(self, plan: Plan, index: int, lease: Lease, path: Path) -> Stop:
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
        return await run.run(self._deadline, lease.lost.is_set)

    async def _count(self, *, now: bool = False) -> None:
        """Count what is durable, at most every second."""
        if not now and time.monotonic() - self._last_count < 1:
            return
        counts = await asyncio.to_thread(self._batch.counts)
        self._last_count = time.monotonic()
        self.progress.done = counts.completed + counts.failed
        self.progress.total, self.progress.failed = counts.total, counts.failed
