"""A step of a fine-tune: trains, publishes the adapter, ends it."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.spec import ATTEMPTS, ONLY_CHECK, SPEC, Exit, Spec
from worker.errors import EngineBusy, VolumeError
from worker.fine_tunes.child import CHECKPOINT_S, Child, reason_of
from worker.fine_tunes.events import Listener
from worker.fine_tunes.memory import WATCH_S, made
from worker.fine_tunes.publish import finished
from worker.fine_tunes.record import FineTune, FineTunes
from worker.fine_tunes.request import Failed, FineTuneResult
from worker.fine_tunes.workshop import Place, Workshop
from worker.long_work.attempt import Attempt
from worker.long_work.runner import How, run
from worker.volume import check_space, failures, write
from worker.volume.lease import Lease

log = logging.getLogger(__name__)

# Seconds before the end of a job's time in which the training writes a checkpoint and ends.
SPARE_S = CHECKPOINT_S + 15
# Crashes in a job after which a training that comes further each time is begun once more.
MOST_CRASHES = 2


async def train(
    fine_tunes: FineTunes,
    fine_tune: FineTune,
    workshop: Workshop,
    attempt: Attempt,
    progress: dict[str, float],
) -> How:
    """Run a fine-tune in a job; see ``long_work.runner.run``."""
    request = await asyncio.to_thread(lambda: fine_tune.request)
    progress["epochs"] = request.spec.epochs
    place = request.created_at, request.id
    step = FineTuneStep(fine_tune, place, workshop, progress)
    try:
        return await run(fine_tunes, fine_tune, attempt, step)
    finally:
        workshop.bench.leave(place)


@dataclass(frozen=True, slots=True)
class Turn:
    """A fine-tune's turn to be trained by this worker, which has its lease."""

    fine_tune: FineTune
    attempt: Attempt
    lease: Lease

    async def why(self) -> str | None:
        """Return why nothing further is to be done here; "lost": another worker has the lease."""
        if self.lease.lost.is_set():
            return "lost"
        if stopping := await asyncio.to_thread(self.fine_tune.stopping):
            return stopping
        return "left" if self.attempt.over else None


class FineTuneStep:
    """One job's work on a fine-tune; another may wait for it. Use on one loop.

    Args:
        fine_tune: to run.
        place: in the row of those that wait for the worker's bench.
        workshop: of the worker.
        progress: updated while it runs; read from any thread.
    """

    def __init__(
        self, fine_tune: FineTune, place: Place, workshop: Workshop, progress: dict[str, float]
    ) -> None:
        self._fine_tune = fine_tune
        self._place = place
        self._workshop = workshop
        self._progress = progress
        self._crashes = 0

    async def __call__(self, attempt: Attempt) -> bool:
        """Do what is left of the work; return False if it is another's turn.

        Raises:
            WorkerError: the volume fails, or it can't be trained here: another job can go on.
        """
        with self._workshop.bench.taken(self._place) as free:
            if not free:
                return False
            async with attempt.lease("run") as lease:
                if lease is None:
                    return False
                try:
                    await self._work(Turn(self._fine_tune, attempt, lease))
                except Failed as failed:
                    result = FineTuneResult(status="failed", error=failed.error)
                    await self._end(result)
        return True

    async def _work(self, turn: Turn) -> None:
        """Train and publish, until it has ended or has to stop.

        Raises:
            Failed: it has failed.
        """
        fine_tune = self._fine_tune
        if await asyncio.to_thread(fine_tune.ended):
            return
        if await asyncio.to_thread(self._done) is None:
            async with self._room(turn) as there:
                while there and not await asyncio.to_thread(self._done) and not await turn.why():
                    await self._attempt(turn)
                # Before what was beside it is back, which may take a while.
                await self._settle(turn)
        if turn.lease.lost.is_set() or await asyncio.to_thread(fine_tune.ended):
            return
        if attempt := await asyncio.to_thread(self._done):
            await self._end(await finished(fine_tune, self._workshop, attempt))
        else:
            await self._settle(turn)

    async def _settle(self, turn: Turn) -> None:
        """End it if it was cancelled, unless its result is being published."""
        done = await asyncio.to_thread(self._done)
        if done is None and await turn.why() == "cancelled":
            await self._end(FineTuneResult(status="cancelled"))

    @contextlib.asynccontextmanager
    async def _room(self, turn: Turn) -> AsyncGenerator[bool, None]:
        """Make room for the block, or yield False: the training has ended, or has to stop."""
        room = self._workshop.room
        if room is None:
            yield True
            return
        if await asyncio.to_thread(self._is_unchecked) and not await turn.why():
            # What is beside it is not disturbed for rows that are wrong.
            await self._attempt(turn, only_check=True)
        if await asyncio.to_thread(self._done) or await turn.why():
            # Nothing beside it is disturbed then.
            yield False
            return
        async with made(room(), turn.why, lambda: turn.attempt.over) as there:
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
        ended = (one for one in reversed(fine_tune.attempts()) if fine_tune.outcome_of(one))
        return next(ended, None)

    async def _attempt(self, turn: Turn, *, only_check: bool = False) -> None:
        """Train, until the training has ended or has to stop.

        Args:
            turn: to be trained.
            only_check: look at the rows, and end the training only if they are wrong.

        Raises:
            Failed: it can't be trained.
        """
        fine_tune, workshop = self._fine_tune, self._workshop
        before = await asyncio.to_thread(fine_tune.durable_step)
        spec = await workshop.fitting_spec(fine_tune, turn.why, patient=not only_check)
        if spec is None:
            return
        attempt = await asyncio.to_thread(self._begin, turn, spec)
        options = (ONLY_CHECK,) if only_check else ()
        command = (*workshop.command, str(fine_tune.directory), attempt.name, *options)
        log.info("fine-tune %s: %s", fine_tune.id, options or f"training from step {before}")
        # Before there is room, requests are answered beside it.
        nice, wandb = only_check or workshop.nice, spec.wandb is not None
        async with _started(command, nice=nice, wandb=wandb) as child:
            status, asked = await self._watched(child, turn, Listener(attempt, self._progress))
        if status == Exit.VOLUME:
            raise VolumeError("The volume is full, or can't be written to: the training stands.")
        done = await asyncio.to_thread(fine_tune.outcome_of, attempt)
        if done is None and not asked and not (only_check and status == Exit.OVER):
            await self._crashed(status, reason_of(status, child.said), before)

    def _begin(self, turn: Turn, spec: Spec) -> Path:
        """Make the directory of another attempt."""
        directory = self._fine_tune.directory
        check_space(directory)
        with failures():
            write(directory / SPEC, spec.model_dump_json().encode())
        return self._fine_tune.add_attempt(turn.lease.owner)

    async def _watched(
        self, child: Child, turn: Turn, listener: Listener
    ) -> tuple[int | None, bool]:
        """Wait for the end of the process, or bring it about.

        Returns:
            Its status, and whether it was asked to end.
        """
        kill_at = math.inf
        while (status := await child.ended(WATCH_S)) is None:
            await asyncio.to_thread(listener.look)
            why = await turn.why()
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
        step = await asyncio.to_thread(fine_tune.durable_step)
        self._crashes += 1
        # A signal comes from outside: the memory that was lacking may be there the next time.
        signalled = status == Exit.STOPPED or (status is not None and status < 0)
        by_chance = signalled and self._crashes == 1
        if self._crashes > MOST_CRASHES or not (step > before or by_chance):
            raise Failed("training_failed", reason)
        log.warning("fine-tune %s: %s It goes on from step %d.", fine_tune.id, reason, step)

    async def _end(self, result: FineTuneResult) -> None:
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
