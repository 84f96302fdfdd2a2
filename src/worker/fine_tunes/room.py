"""Room for a training: made in the memory by what is beside it, or waited for."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

from trainer.spec import Spec
from worker.errors import VolumeError, WorkerError
from worker.fine_tunes.crashes import Failed
from worker.fine_tunes.estimate import MemoryTaken
from worker.fine_tunes.state import FineTune
from worker.fine_tunes.workshop import Room, Workshop

# Seconds between looks at whether the training has to stop, and at the memory.
WATCH_S = 1.0
# Seconds that a training waits for memory that others have: what has just been ended gives it back
# in less.
MEMORY_S = 60.0

# Returns whether the training has to stop.
Stops = Callable[[], Awaitable[object]]


@contextlib.asynccontextmanager
async def made(room: Room, stops: Stops, is_left: Callable[[], bool]) -> AsyncGenerator[bool, None]:
    """Make room for the block, or yield False: the training has to stop before there is any.

    What was beside it is back after the block, unless the job's time does not suffice for that.
    """
    if await stops():
        # Before what is beside it is disturbed.
        yield False
        return
    making = room()
    entering = asyncio.create_task(making.__aenter__())
    try:
        while not entering.done() and not await stops():
            await asyncio.wait({entering}, timeout=WATCH_S)
        there = entering.done()
        if there:
            entering.result()
        yield there
    finally:
        entering.cancel()
        await asyncio.wait({entering})
        if not entering.cancelled() and entering.exception() is None:
            leaving = asyncio.create_task(making.__aexit__(None, None, None))
            # An engine starts for minutes, and the job's answer says how it goes on.
            while not leaving.done() and not is_left():
                await asyncio.wait({leaving}, timeout=WATCH_S)
            if leaving.done():
                leaving.result()


async def given(
    workshop: Workshop, fine_tune: FineTune, stops: Stops, *, patient: bool
) -> Spec | None:
    """Return what a training is given; None: it has to stop before there is memory for it.

    Args:
        workshop: of the worker.
        fine_tune: to be trained.
        stops: as above.
        patient: whether it needs the memory now, and waits for it; else it may have it later.

    Raises:
        Failed: it can't be trained here.
        VolumeError: the volume fails.
    """
    until = time.monotonic() + MEMORY_S
    while True:
        try:
            spec = await asyncio.to_thread(workshop.spec, fine_tune)
            await _fit(workshop, spec, patient=patient)
        except VolumeError:
            raise
        except MemoryTaken as taken:
            if time.monotonic() > until:
                raise _untrainable(taken) from taken
        except WorkerError as error:
            raise _untrainable(error) from error
        else:
            return spec
        if await stops():
            return None
        await asyncio.sleep(WATCH_S)


async def _fit(workshop: Workshop, spec: Spec, *, patient: bool) -> None:
    try:
        await asyncio.to_thread(workshop.fits, spec)
    except MemoryTaken:
        if patient:
            raise


def _untrainable(error: WorkerError) -> Failed:
    return Failed("not_trainable", error.message, error.param)
