"""Reads the output of a side: its last lines, and the phases of a worker's startup."""

import asyncio
import re
import time
from asyncio.subprocess import Process
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

LINE = re.compile(r"start-up: (\S+)\s+([0-9.]+) s")
# Seconds from the start of the process to the begin and to the end of a phase.
Phase = dict[str, float]


@dataclass(frozen=True)
class Output:
    """The output of a side so far."""

    phases: dict[str, Phase] = field(default_factory=dict)
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=20))
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def read_output(process: Process, began: float) -> AsyncIterator[Output]:
    """Read a process's output during the block.

    Args:
        process: A process whose standard output is a pipe.
        began: Time at which the process was started, in seconds of the monotonic clock.
    """
    output = Output()
    reading = asyncio.create_task(_read(process, began, output))
    try:
        yield output
    finally:
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading


async def _read(process: Process, began: float, output: Output) -> None:
    assert process.stdout is not None  # for the type checker
    rest = b""
    # In blocks, because a busy worker logs a line for each job.
    while block := await process.stdout.read(2**16):
        *lines, rest = (rest + block).split(b"\n")
        for line in (each.decode(errors="replace") for each in lines):
            output.last_lines.append(line)
            if match := LINE.search(line):
                # A phase is logged when it ends.
                end = time.monotonic() - began
                begin = end - float(match[2])
                output.phases[match[1]] = {"begin": round(begin, 3), "end": round(end, 3)}
    output.ended.set()
