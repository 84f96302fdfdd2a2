"""The phases of a worker's startup, read from its log."""

import asyncio
import re
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

LINE = re.compile(rb"start-up: (\S+)\s+([0-9.]+) s")
# Seconds from the start of the process to the begin and to the end of a phase.
Phase = dict[str, float]


@asynccontextmanager
async def record_phases(process: Process, began: float) -> AsyncIterator[dict[str, Phase]]:
    """Read a process's output during the block, and record the phases that it logs.

    Args:
        process: A process whose standard output is a pipe.
        began: Time at which the process was started, in seconds of the monotonic clock.
    """
    phases: dict[str, Phase] = {}
    reading = asyncio.create_task(_read(process, began, phases))
    try:
        yield phases
    finally:
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading


async def _read(process: Process, began: float, phases: dict[str, Phase]) -> None:
    assert process.stdout is not None  # for the type checker
    rest = b""
    # In blocks, because a busy worker logs a line for each job.
    while block := await process.stdout.read(2**16):
        *lines, rest = (rest + block).split(b"\n")
        for match in filter(None, map(LINE.search, lines)):
            # A phase is logged when it ends.
            end = time.monotonic() - began
            phases[match[1].decode()] = {
                "begin": round(end - float(match[2]), 3),
                "end": round(end, 3),
            }
