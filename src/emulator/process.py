"""A worker's process, with all that it starts, on this machine."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

# Kills its process group when its standard input is closed: however the emulator ended. The SDK of
# a worker that is left behind would poll a dead port for ever.
_GUARD = ("sh", "-c", "read -r _; kill -KILL 0")


class WorkerProcess:
    """A worker's process group, in place of a container.

    It is led by its guard, and not the terminal's, so Ctrl-C does not reach it.
    """

    def __init__(
        self, guard: asyncio.subprocess.Process, process: asyncio.subprocess.Process
    ) -> None:
        self._guard = guard
        self._process = process

    @classmethod
    async def start(cls, command: Sequence[str], environ: Mapping[str, str], log: Path) -> Self:
        """Start a worker, and append its output to the log.

        Raises:
            OSError: the command can't be run.
        """
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        guard = await asyncio.create_subprocess_exec(
            *_GUARD, stdin=pipe, stdout=null, stderr=null, process_group=0
        )
        try:
            with log.open("ab") as output:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    env=environ,
                    stdin=null,
                    stdout=output,
                    stderr=asyncio.subprocess.STDOUT,
                    process_group=guard.pid,
                )
        except (OSError, asyncio.CancelledError):
            os.killpg(guard.pid, signal.SIGKILL)
            await guard.wait()
            raise
        return cls(guard, process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def group(self) -> int:
        return self._guard.pid

    def signal(self, number: signal.Signals) -> None:
        """Send a signal as to a container: SIGTERM to the first process, others to all."""
        with contextlib.suppress(ProcessLookupError):
            if number is signal.SIGTERM:
                self._process.terminate()
            else:
                os.killpg(self.group, number)

    async def wait(self) -> int:
        """Wait for the first process to end, and return its exit status."""
        return await self._process.wait()

    async def kill(self) -> None:
        """Kill the whole group: processes may be left though the first one has exited."""
        self.signal(signal.SIGKILL)
        await self._process.wait()
        await self._guard.wait()
