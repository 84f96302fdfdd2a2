"""The phases of a worker's start, read from its log."""

import asyncio
import re
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

LINE = re.compile(rb"start-up: (\S+)\s+([0-9.]+) s")
# Seconds from the process's start to the phase's begin and to its end.
Phase = dict[str, float]


@asynccontextmanager
async def noted(process: Process, began: float) -> AsyncIterator[dict[str, Phase]]:
    """Read a process's output while the block runs, and note the phases that it tells of.

    Args:
        process: whose standard output is a pipe.
        began: when it was started, in seconds of the monotonic clock.
    """
    found: dict[str, Phase] = {}
    reading = asyncio.create_task(_read(process, began, found))
    try:
        yield found
    finally:
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading


async def _read(process: Process, began: float, found: dict[str, Phase]) -> None:
    assert process.stdout is not None  # for the type checker
    rest = b""
    # By blocks: a busy worker logs a line for each job.
    while block := await process.stdout.read(2**16):
        *lines, rest = (rest + block).split(b"\n")
        for told in filter(None, map(LINE.search, lines)):
            # A phase is logged when it ends.
            end = time.monotonic() - began
            found[told[1].decode()] = {
                "begin": round(end - float(told[2]), 3),
                "end": round(end, 3),
            }
