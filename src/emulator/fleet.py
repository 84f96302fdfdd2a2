"""The workers of `make endpoint`: started, restarted when they exit, and stopped."""

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from emulator.load_balancer import LoadBalancer
from emulator.server import Emulator
from emulator.state.worker import Worker

_MAX_BACK_OFF_S = 60.0
# Of the log of a worker that exited, at most.
_SHOWN_LINES = 20
_SHOWN_BYTES = 8_000
# The worker's own warnings in its log; vLLM's lines look otherwise.
_WARNING = re.compile(r"^\S+ \S+ WARNING +worker\S*: (.+)$", re.MULTILINE)
# Kills its process group when its standard input is closed: however the emulator ended. The SDK of
# a worker that is left behind would poll a dead port for ever.
_GUARD = ("sh", "-c", "read -r _; kill -KILL 0")


@dataclass(frozen=True)
class WorkerProcess:
    """A worker's process group, in place of a container.

    It is led by its guard, and not the terminal's, so Ctrl-C does not reach it.
    """

    guard: asyncio.subprocess.Process
    process: asyncio.subprocess.Process

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
        return self.process.pid

    @property
    def group(self) -> int:
        return self.guard.pid

    def signal(self, number: signal.Signals) -> None:
        """Send a signal as to a container: SIGTERM to the first process, others to all."""
        with contextlib.suppress(ProcessLookupError):
            if number is signal.SIGTERM:
                self.process.terminate()
            else:
                os.killpg(self.group, number)

    async def wait(self) -> int:
        """Wait for the first process to end, and return its exit status."""
        return await self.process.wait()

    async def kill(self) -> None:
        """Kill the whole group: processes may be left though the first one has exited."""
        self.signal(signal.SIGKILL)
        await self.process.wait()
        await self.guard.wait()


@dataclass
class Fleet:
    """A number of workers that are kept running. An async context manager.

    Args:
        emulator: it serves already.
        command: what starts a worker.
        environ: the workers' environment, which the emulator's variables complete.
        logs: the folder for one log per worker.
        announce: is called with each line about a worker.
    """

    emulator: Emulator | LoadBalancer
    command: Sequence[str]
    environ: Mapping[str, str]
    logs: Path
    announce: Callable[[str], None]

    def __post_init__(self) -> None:
        self.ready = asyncio.Event()  # set when the first worker is ready
        self._queue = self.emulator.queue
        self._keepers: list[asyncio.Task[None]] = []

    def start(self, count: int) -> None:
        # Logs of an earlier run.
        for log in self.logs.glob("worker-*.log"):
            log.unlink()
        for number in range(1, count + 1):
            worker = self._queue.worker(f"worker-{number}")
            self._keepers.append(asyncio.create_task(self._keep(worker)))

    async def run_until(self, event: asyncio.Event) -> None:
        """Keep the workers running until the event is set.

        Raises:
            OSError: a worker can't be started, or its log can't be written.
        """
        ended = asyncio.wait(self._keepers, return_when=asyncio.FIRST_COMPLETED)
        await _first_of(event.wait(), ended)
        for keeper in self._keepers:
            if keeper.done():
                keeper.result()

    async def drain(self, grace_s: float, hurry: asyncio.Event) -> None:
        """Wait until the workers have finished their jobs, `grace_s` seconds or until `hurry`."""
        for worker in self._queue.workers.values():
            if worker.process is not None:
                worker.process.signal(signal.SIGTERM)
        # Not before the signals: an SDK that got none would poll again at once.
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
        """Start a worker again whenever it exits, as the platform does, until the queue closes."""
        failures = 0
        while not self._queue.closed:
            log = self.logs / f"{worker.id}.log"
            printed_before = log.stat().st_size if log.exists() else 0
            self.announce(f"{worker.id} starts (its log: {log})")
            was_ready, status = await self._run(worker, log, printed_before)
            if self._queue.closed:
                return
            failures = 0 if was_ready else failures + 1
            worker.unhealthy = failures > 0
            delay_s = min(2.0**failures, _MAX_BACK_OFF_S)
            self.announce(
                f"{worker.id} exited {_describe(status)}; it is started again in {delay_s:g} s"
            )
            if failures or status > 0:
                self.announce(_last_lines(log, printed_before))
            await self._queue.arrived.wait_for(lambda: self._queue.closed, delay_s)

    async def _run(self, worker: Worker, log: Path, printed_before: int) -> tuple[bool, int]:
        """Run a worker's process until it exits; return whether it became ready, and its status."""
        start = time.monotonic()
        environ = {**self.environ, **self.emulator.worker_environ(worker.id)}
        process = await WorkerProcess.start(self.command, environ, log)
        worker.process = process
        worker.starts += 1
        if self._queue.closed:  # during the start
            process.signal(signal.SIGTERM)
        try:
            up = worker.changed.wait_for(lambda: worker.ready or worker.failed)
            await _first_of(process.wait(), up)
            after = f"after {time.monotonic() - start:.1f} s"
            if worker.failed:
                self.announce(f"{worker.id}'s start failed {after}; it answers why:")
                self.announce(_last_lines(log, printed_before))
            if worker.ready:
                self.announce(f"{worker.id} is ready {after}")
                for warning in _WARNING.findall(_printed(log, printed_before)):
                    self.announce(f"    {warning}")
                self.ready.set()
            status = await process.wait()
            return worker.ready, status
        finally:
            await process.kill()
            self._queue.lose(worker)


async def _first_of(*awaitables: Coroutine[Any, Any, object]) -> None:
    """Wait until one awaitable is done, and cancel the others."""
    tasks = [asyncio.create_task(awaitable) for awaitable in awaitables]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _describe(status: int) -> str:
    if status >= 0:
        return f"with status {status}"
    names = {number.value: number.name for number in signal.Signals}
    return f"by {names.get(-status, f'signal {-status}')}"


def _printed(log: Path, since: int) -> str:
    """Return what a log has from byte `since` on."""
    with log.open("rb") as file:
        file.seek(since)
        return file.read().decode(errors="replace")


def _last_lines(log: Path, since: int) -> str:
    """Return the last lines of a log, from byte `since` on, indented."""
    earliest = max(since, log.stat().st_size - _SHOWN_BYTES)
    lines = _printed(log, earliest).splitlines() or ["(it printed nothing)"]
    return "\n".join(f"    {line}" for line in lines[-_SHOWN_LINES:])
