"""Runs a fine-tune, from wherever it was left: trains, publishes the adapter, ends it."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Literal

from trainer.spec import ATTEMPTS, ONLY_CHECK, SPEC, Exit, Spec
from worker.errors import EngineBusy, VolumeError
from worker.fine_tunes import attempt as attempts_of
from worker.fine_tunes.attempt import Listener, Progress
from worker.fine_tunes.child import CHECKPOINT_S, Child, reason_of
from worker.fine_tunes.memory import WATCH_S, made
from worker.fine_tunes.publish import finished
from worker.fine_tunes.request import Failed, Result
from worker.fine_tunes.state import FineTune
from worker.fine_tunes.workshop import Workshop
from worker.volume import check_space, failures, write
from worker.volume.lease import LOOK_S, Lease
from worker.volume.turns import Turns

log = logging.getLogger(__name__)

# Seconds before the end of a job's time in which the training writes a checkpoint and ends.
SPARE_S = CHECKPOINT_S + 15
# Crashes in a job after which a training that comes further each time is begun once more.
MOST_CRASHES = 2

# Why a training is ended by this worker; "left": another job goes on.
Why = Literal["lost", "cancelled", "paused", "left"]
How = Literal["ended", "paused", "left"]


class Runner:
    """One job's work on a fine-tune; another may wait for it. Use on one loop.

    Args:
        fine_tune: to run.
        workshop: of the worker.
        progress: updated while it runs.
    """

    def __init__(self, fine_tune: FineTune, workshop: Workshop, progress: Progress) -> None:
        self._fine_tune = fine_tune
        self._workshop = workshop
        self._progress = progress
        self._turns = Turns(fine_tune.leases, lambda: (progress.step, 0))
        self._deadline = math.inf
        self._crashes = 0

    async def run(self, seconds: float) -> How:
        """Work until the fine-tune has ended or is paused, or the job's time is over.

        Args:
            seconds: that the job may take.

        Returns:
            "left" if another job has to go on.

        Raises:
            WorkerError: the volume fails, or it can't be trained here: another job can go on.
        """
        self._deadline = time.monotonic() + seconds - SPARE_S
        fine_tune, bench = self._fine_tune, self._workshop.bench
        request = await asyncio.to_thread(lambda: fine_tune.request)
        self._progress.epochs = request.spec.epochs
        place = request.created_at, fine_tune.id
        try:
            while not await asyncio.to_thread(self._over):
                if (why := await self._why()) in ("paused", "left"):
                    return "paused" if why == "paused" else "left"
                if not await self._step(place):
                    await asyncio.sleep(LOOK_S)
        finally:
            bench.leave(place)
        return "ended"

    def _over(self) -> bool:
        self._fine_tune.settle()
        return self._fine_tune.ended()

    async def _step(self, place: tuple[int, str]) -> bool:
        """Do what is left of the work; return False if somebody else is at work."""
        with self._workshop.bench.taken(place) as free:
            if not free:
                return False
            async with self._turns.taken("run") as lease:
                if lease is None:
                    return False
                try:
                    await self._work(lease)
                except Failed as failed:
                    await self._end(Result(status="failed", at=_now(), error=failed.error))
        return True

    async def _why(self, lease: Lease | None = None) -> Why | None:
        """Return why no further step is to be done here."""
        if lease and lease.lost.is_set():
            return "lost"
        if stopping := await asyncio.to_thread(self._fine_tune.stopping):
            return stopping
        return "left" if self._is_left() else None

    def _is_left(self) -> bool:
        """Return whether another job has to go on: the worker is being stopped, or time is over."""
        return self._workshop.closed() or time.monotonic() > self._deadline

    async def _work(self, lease: Lease) -> None:
        """Train and publish, until it has ended or has to stop.

        Raises:
            Failed: it has failed.
        """
        fine_tune = self._fine_tune
        if await asyncio.to_thread(fine_tune.ended):
            return
        if await asyncio.to_thread(self._done) is None:
            async with self._room(lease) as there:
                if there:
                    await self._train(lease)
                # Before what was beside it is back, which may take a while.
                await self._settle(lease)
        if lease.lost.is_set() or await asyncio.to_thread(fine_tune.ended):
            return
        if attempt := await asyncio.to_thread(self._done):
            await self._end(await finished(fine_tune, self._workshop, attempt))
        else:
            await self._settle(lease)

    async def _settle(self, lease: Lease) -> None:
        """End it if it was cancelled, unless its result is being published."""
        done = await asyncio.to_thread(self._done)
        if done is None and await self._why(lease) == "cancelled":
            await self._end(Result(status="cancelled", at=_now()))

    async def _train(self, lease: Lease) -> None:
        """Train, until the training has ended or has to stop.

        Raises:
            Failed: it can't be trained.
        """
        while not await asyncio.to_thread(self._done) and not await self._why(lease):
            await self._attempt(lease)

    @contextlib.asynccontextmanager
    async def _room(self, lease: Lease) -> AsyncGenerator[bool, None]:
        """Make room for the block, or yield False: the training has ended, or has to stop."""
        room = self._workshop.room
        if room is None:
            yield True
            return
        if await asyncio.to_thread(self._is_unchecked):
            # What is beside it is not disturbed for rows that are wrong.
            await self._attempt(lease, only_check=True)
        if await asyncio.to_thread(self._done) or await self._why(lease):
            # Nothing beside it is disturbed then.
            yield False
            return
        async with made(room(), lambda: self._why(lease), self._is_left) as there:
            yield there

    def _is_unchecked(self) -> bool:
        checked = self._fine_tune.checked
        return checked is None or bool(checked.mistakes)

    def _done(self) -> Path | None:
        """Return the attempt that has ended the training, unless that does not count any more."""
        fine_tune = self._fine_tune
        if decided := fine_tune.publishing:
            return fine_tune.directory / ATTEMPTS / decided.attempt
        if fine_tune.stopping() == "cancelled":
            return None
        ended = (one for one in reversed(fine_tune.attempts()) if attempts_of.outcome_of(one))
        return next(ended, None)

    async def _attempt(self, lease: Lease, *, only_check: bool = False) -> None:
        """Train, until the training has ended or has to stop.

        Args:
            lease: that is held.
            only_check: look at the rows, and end the training only if they are wrong.

        Raises:
            Failed: it can't be trained.
        """
        fine_tune, workshop = self._fine_tune, self._workshop
        before = await asyncio.to_thread(lambda: attempts_of.durable_step(fine_tune.attempts()))
        spec = await workshop.fitting_spec(
            fine_tune, lambda: self._why(lease), patient=not only_check
        )
        if spec is None:
            return
        attempt = await asyncio.to_thread(self._begin, lease, spec)
        options = (ONLY_CHECK,) if only_check else ()
        command = (*workshop.command, str(fine_tune.directory), attempt.name, *options)
        log.info("fine-tune %s: %s", fine_tune.id, options or f"training from step {before}")
        # Before there is room, requests are answered beside it.
        nice, wandb = only_check or workshop.nice, spec.wandb is not None
        async with _started(command, nice=nice, wandb=wandb) as child:
            status, asked = await self._watched(child, lease, Listener(attempt, self._progress))
        if status == Exit.VOLUME:
            raise VolumeError("The volume is full, or can't be written to: the training stands.")
        done = await asyncio.to_thread(attempts_of.outcome_of, attempt)
        if done is None and not asked and not (only_check and status == Exit.OVER):
            await self._crashed(status, reason_of(status, child.said), before)

    def _begin(self, lease: Lease, spec: Spec) -> Path:
        """Make the directory of another attempt."""
        fine_tune = self._fine_tune
        name = attempts_of.next_name(fine_tune.attempts(), lease.owner)
        attempt = fine_tune.directory / ATTEMPTS / name
        check_space(fine_tune.directory)
        with failures():
            attempt.mkdir(parents=True)
            write(fine_tune.directory / SPEC, spec.model_dump_json().encode())
        return attempt

    async def _watched(
        self, child: Child, lease: Lease, listener: Listener
    ) -> tuple[int | None, bool]:
        """Wait for the end of the process, or bring it about.

        Returns:
            Its status, and whether it was asked to end.
        """
        kill_at = math.inf
        while (status := await child.ended(WATCH_S)) is None:
            await asyncio.to_thread(listener.look)
            why = await self._why(lease)
            if why in ("lost", "cancelled") or time.monotonic() > kill_at:
                return await child.kill(), True
            if why and kill_at == math.inf:
                kill_at = time.monotonic() + CHECKPOINT_S
                child.terminate()
        await asyncio.to_thread(listener.look)
        return status, kill_at < math.inf

    async def _crashed(self, status: int | None, reason: str, before: int) -> None:
        """Let another attempt go on, if this one has come further, or was killed the first time.

        Raises:
            Failed: it has not, or this happens too often.
        """
        fine_tune = self._fine_tune
        step = await asyncio.to_thread(lambda: attempts_of.durable_step(fine_tune.attempts()))
        self._crashes += 1
        # A signal comes from outside: the memory that was lacking may be there the next time.
        signalled = status == Exit.STOPPED or (status is not None and status < 0)
        by_chance = signalled and self._crashes == 1
        if self._crashes > MOST_CRASHES or not (step > before or by_chance):
            raise Failed("training_failed", reason)
        log.warning("fine-tune %s: %s It goes on from step %d.", fine_tune.id, reason, step)

    async def _end(self, result: Result) -> None:
        ended = await asyncio.to_thread(self._fine_tune.end, result)
        log.info("fine-tune %s: %s", self._fine_tune.id, ended.status)


@contextlib.asynccontextmanager
async def _started(
    command: Sequence[str], *, nice: bool, wandb: bool
) -> AsyncGenerator[Child, None]:
    """Start the process for the block, which it does not outlive."""
    try:
        child = await Child.started(command, nice=nice, wandb=wandb)
    except OSError as error:
        log.warning("the process that trains can't be started: %s", error)
        raise EngineBusy("This machine has no room for a further process.") from error
    try:
        yield child
    finally:
        # Also when the job is cancelled.
        await asyncio.shield(asyncio.create_task(child.kill()))


def _now() -> int:
    return int(time.time())
