"""The process that trains: started, watched, and ended, at the latest with this process."""

import asyncio
import contextlib
import os
import re
import signal
from asyncio.subprocess import Process
from collections.abc import Sequence

from worker import children
from worker.children import signal_name
from worker.masking import masked, without_paths
from worker.settings.environment import trainers_environ

COMMAND = tuple(children.module("trainer"))
# Requests that are answered beside it come first.
NICENESS = 10
# Seconds that it has for a checkpoint, and until a killed one is gone.
CHECKPOINT_S = 30.0
KILLED_S = 5.0
# Bytes of standard error that are kept, and characters of its last line that a reason quotes.
TAIL = 16_000
LONGEST = 300
# Last lines of a crash that are no reason for it.
_NOISE = re.compile(r"^\s|^(Traceback|\[rank|.*Warning: )|^$")
_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory", re.IGNORECASE)
_LESS_MEMORY = (
    "Rows with fewer tokens (FINE_TUNE_MAX_LENGTH), a smaller batch_size or a worker with more "
    "memory help."
)


class Child:
    """One process that trains. Use on the loop that it was started on."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._said = bytearray()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def started(cls, command: Sequence[str], *, nice: bool, wandb: bool = False) -> "Child":
        """Start a process.

        Args:
            command: to run.
            nice: whether others on this machine come first.
            wandb: whether it has the key of Weights & Biases.

        Raises:
            OSError: the system has no room for another process.
        """
        environ = trainers_environ(wandb=wandb)
        process = await children.start(
            command,
            children.with_sources(environ),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            # A group of its own, which can be killed as one: it may start processes, too.
            start_new_session=True,
        )
        with contextlib.suppress(OSError):
            # vLLM may have bound this process to some of the cores.
            os.sched_setaffinity(process.pid, range(os.cpu_count() or 1))
            if nice:
                os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def said(self) -> str:
        """The last that it has written to standard error."""
        return self._said.decode(errors="replace")

    async def ended(self, seconds: float | None = None) -> int | None:
        """Wait for its end, and return its status; None: it has not ended in so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                status = await self._process.wait()
        except TimeoutError:
            return None
        # What it has started, and what may hold its output open.
        _kill(self._process.pid)
        await asyncio.wait({self._reading}, timeout=KILLED_S)
        self._reading.cancel()
        return status

    def terminate(self) -> None:
        """Let it write a checkpoint and end, for which it has ``CHECKPOINT_S``."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    async def kill(self) -> int | None:
        """End it at once; see ``ended``."""
        if self._process.returncode is None:
            _kill(self._process.pid)
        return await self.ended(KILLED_S)

    async def _read(self) -> None:
        assert self._process.stderr  # for the type checker: it is a pipe
        while read := await self._process.stderr.read(TAIL):
            self._said += read
            del self._said[:-TAIL]


def reason_of(status: int | None, said: str) -> str:
    """Return why the process has ended, in a sentence for callers.

    Args:
        status: its own, or below 0 the signal that has ended it; None: not known.
        said: the last of its standard error.
    """
    if status is not None and status < 0:
        text = f"The process that trains was ended by {signal_name(-status)}"
        if -status == signal.SIGKILL:
            text += f", probably because this machine's memory is full. {_LESS_MEMORY}"
            return text
        return f"{text}."
    lines = [line.strip() for line in said.splitlines() if not _NOISE.search(line)]
    last = without_paths(masked(lines[-1]))[:LONGEST] if lines else f"status {status}"
    if _MEMORY.search(last):
        return f"The training needs more memory than there is: {last} {_LESS_MEMORY}"
    return f"The process that trains has crashed: {last}"


def _kill(group: int) -> None:
    # A process id is not given away while any process of its group lives.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
