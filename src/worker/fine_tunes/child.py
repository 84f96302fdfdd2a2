"""Starts, watches and stops the trainer's process, which exits with this process at the latest."""

import asyncio
import contextlib
import os
import re
import signal
from asyncio.subprocess import Process
from collections.abc import Sequence

from worker import children
from worker.children import signal_name
from worker.masking import mask_secrets, remove_paths
from worker.settings.environment import trainer_environ

COMMAND = tuple(children.module_command("trainer"))
# Niceness of a trainer that runs while this worker answers requests, which have priority.
NICENESS = 10
# Seconds for writing a checkpoint, and for the exit of a killed process.
CHECKPOINT_S = 30.0
KILL_WAIT_S = 5.0
# Maximum bytes of standard error that are stored, and maximum characters of its last line in a
# reason.
MAX_STDERR_BYTES = 16_000
MAX_REASON_LENGTH = 300
# Lines of standard error that don't explain a crash.
_NOISE = re.compile(r"^\s|^(Traceback|\[rank|.*Warning: )|^$")
_OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory", re.IGNORECASE)
_MEMORY_ADVICE = (
    "Rows with fewer tokens (FINE_TUNE_MAX_LENGTH), a smaller batch_size or a worker with more "
    "memory help."
)


class TrainerProcess:
    """A running process of the trainer. Use on the event loop that started it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._stderr_tail = bytearray()
        self._stderr_task = asyncio.create_task(self._read_stderr())

    @classmethod
    async def start(
        cls, command: Sequence[str], *, low_priority: bool, wandb: bool = False
    ) -> "TrainerProcess":
        """Start the process, which gets the key of Weights & Biases if ``wandb`` is set.

        Raises:
            OSError: The system can't start another process.
        """
        environ = trainer_environ(wandb=wandb)
        process = await children.start_async(
            command,
            children.add_source_path(environ),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            # The process may start others: its own process group can be killed as a whole.
            start_new_session=True,
        )
        with contextlib.suppress(OSError):
            # If vLLM has bound this process to some of the cores, the child would inherit that.
            os.sched_setaffinity(process.pid, range(os.cpu_count() or 1))
            if low_priority:
                os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def stderr_tail(self) -> str:
        return self._stderr_tail.decode(errors="replace")

    async def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for the exit and return its status; None after the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                status = await self._process.wait()
        except TimeoutError:
            return None
        # Kill processes that the trainer has started, which may hold its standard error open.
        _kill_group(self._process.pid)
        await asyncio.wait({self._stderr_task}, timeout=KILL_WAIT_S)
        self._stderr_task.cancel()
        return status

    def terminate(self) -> None:
        """Make the process write a checkpoint and exit; callers allow ``CHECKPOINT_S`` for that."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    async def kill(self) -> int | None:
        """Kill the process immediately; return its status as ``wait`` does."""
        if self._process.returncode is None:
            _kill_group(self._process.pid)
        return await self.wait(KILL_WAIT_S)

    async def _read_stderr(self) -> None:
        assert self._process.stderr  # for the type checker: it is a pipe
        while read := await self._process.stderr.read(MAX_STDERR_BYTES):
            self._stderr_tail += read
            del self._stderr_tail[:-MAX_STDERR_BYTES]


def explain_exit(status: int | None, stderr_tail: str) -> str:
    """Return why the process has exited, as a sentence for callers.

    ``status`` is negative for a signal, and None if it is unknown.
    """
    if status is not None and status < 0:
        message = f"The process that trains was ended by {signal_name(-status)}"
        if -status == signal.SIGKILL:
            message += f", probably because this machine's memory is full. {_MEMORY_ADVICE}"
            return message
        return f"{message}."
    lines = [line.strip() for line in stderr_tail.splitlines() if not _NOISE.search(line)]
    last = (
        remove_paths(mask_secrets(lines[-1]))[:MAX_REASON_LENGTH] if lines else f"status {status}"
    )
    if _OUT_OF_MEMORY.search(last):
        return f"The training needs more memory than there is: {last} {_MEMORY_ADVICE}"
    return f"The process that trains has crashed: {last}"


def _kill_group(group: int) -> None:
    # This hits no other group: an id is not reused while a process of the group is alive.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
