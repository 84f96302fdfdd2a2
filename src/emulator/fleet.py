"""Workers as processes of this machine: started, watched, restarted and stopped."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from emulator.job_queue import Worker
from emulator.server import Emulator

LONGEST_BACK_OFF_S = 60.0
_SHOWN_LINES = 20
_SHOWN_BYTES = 8_000

# Ends its process group when its standard input does, which is when the emulator is gone, in
# whatever way: the SDK of a worker that is left behind would poll a dead port for ever.
_GUARD = ("sh", "-c", "read -r _; kill -KILL 0")


class WorkerProcess:
    """A worker's process and all that it starts, in a process group: what a container is.

    The group is its guard's, so that Ctrl-C in a terminal does not reach it.
    """

    def __init__(
        self, guard: asyncio.subprocess.Process, process: asyncio.subprocess.Process
    ) -> None:
        self._guard = guard
        self._process = process

    @classmethod
    async def start(cls, command: Sequence[str], environ: Mapping[str, str], log: Path) -> Self:
        """Start a worker; what it prints is appended to its log.

        Raises:
            OSError: the command can't be run.
        """
        pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        guard = await asyncio.create_subprocess_exec(
            *_GUARD, stdin=pipe, stdout=nothing, stderr=nothing, process_group=0
        )
        try:
            with log.open("ab") as output:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    env=environ,
                    stdin=nothing,
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
        """Send what a container's signals are: SIGTERM to its first process, others to all."""
        with contextlib.suppress(ProcessLookupError):
            if number is signal.SIGTERM:
                self._process.terminate()
            else:
                os.killpg(self.group, number)

    async def wait(self) -> int:
        """Wait for the end of its first process, and return the exit status."""
        return await self._process.wait()

    async def kill(self) -> None:
        """End all of its group, also what a first process that exited left behind."""
        self.signal(signal.SIGKILL)
        await self._process.wait()
        await self._guard.wait()


class Fleet:
    """A number of workers that are kept running. An async context manager."""

    def __init__(
        self,
        emulator: Emulator,
        command: Sequence[str],
        environ: Mapping[str, str],
        logs: Path,
        tell: Callable[[str], None],
    ) -> None:
        self.ready = asyncio.Event()  # a first worker is
        self._emulator = emulator
        self._queue = emulator.queue
        self._command = command
        self._environ = environ
        self._logs = logs
        self._tell = tell
        self._keepers: list[asyncio.Task[None]] = []

    def start(self, count: int) -> None:
        # What workers printed when the endpoint was served before.
        for log in self._logs.glob("worker-*.log"):
            log.unlink()
        for number in range(1, count + 1):
            worker = self._queue.worker(f"worker-{number}")
            self._keepers.append(asyncio.create_task(self._keep(worker)))

    async def run_until(self, event: asyncio.Event) -> None:
        """Keep the workers running until an event.

        Raises:
            OSError: a worker can't be started, or its log can't be written.
        """
        ended = asyncio.wait(self._keepers, return_when=asyncio.FIRST_COMPLETED)
        await _first_of(event.wait(), ended)
        for keeper in self._keepers:
            if keeper.done():
                keeper.result()

    async def drain(self, grace_s: float, hurry: asyncio.Event) -> None:
        """Let the workers finish what they have, for so long or until there is a hurry."""
        for worker in self._queue.workers.values():
            if worker.process is not None:
                worker.process.signal(signal.SIGTERM)
        # Only now: the SDK asks for jobs again at once where it has not been told to stop.
        self._queue.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await _first_of(hurry.wait(), asyncio.wait(self._keepers))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    async def _keep(self, worker: Worker) -> None:
        """Run a worker again and again, as the platform does, until the endpoint closes."""
        failures = 0
        while not self._queue.closed:
            log = self._log(worker)
            printed_before = log.stat().st_size if log.exists() else 0
            self._tell(f"{worker.id} starts (its log: {log})")
            was_ready, status = await self._run(worker, log)
            if self._queue.closed:
                return
            failures = 0 if was_ready else failures + 1
            worker.unhealthy = failures > 0
            delay_s = min(2.0**failures, LONGEST_BACK_OFF_S)
            self._tell(
                f"{worker.id} exited {_in_words(status)}; it is started again in {delay_s:g} s"
            )
            if failures:
                self._tell(_last_lines(log, printed_before))
            await self._queue.arrived.wait_for(lambda: self._queue.closed, delay_s)

    def _log(self, worker: Worker) -> Path:
        return self._logs / f"{worker.id}.log"

    async def _run(self, worker: Worker, log: Path) -> tuple[bool, int]:
        """Run a worker's process once; return whether it became ready, and its exit status."""
        begun = time.monotonic()
        environ = {**self._environ, **self._emulator.worker_environ(worker.id)}
        process = await WorkerProcess.start(self._command, environ, log)
        worker.process = process
        worker.starts += 1
        if self._queue.closed:  # while it was being started
            process.signal(signal.SIGTERM)
        try:
            await _first_of(process.wait(), worker.changed.wait_for(lambda: worker.ready))
            if worker.ready:
                self._tell(f"{worker.id} is ready after {time.monotonic() - begun:.1f} s")
                self.ready.set()
            status = await process.wait()
            return worker.ready, status
        finally:
            await process.kill()
            self._queue.lose(worker)


async def _first_of(*awaitables: Coroutine[Any, Any, object]) -> None:
    """Wait until one of them is done, and cancel the others."""
    tasks = [asyncio.create_task(awaitable) for awaitable in awaitables]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _in_words(status: int) -> str:
    if status >= 0:
        return f"with status {status}"
    names = {number.value: number.name for number in signal.Signals}
    return f"by {names.get(-status, f'signal {-status}')}"


def _last_lines(log: Path, since: int) -> str:
    """The end of what was printed to a log from a position on, indented."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(since, size - _SHOWN_BYTES))
        lines = file.read().decode(errors="replace").splitlines() or ["(it printed nothing)"]
    return "\n".join(f"    {line}" for line in lines[-_SHOWN_LINES:])
