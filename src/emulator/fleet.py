"""Starts the workers of ``make endpoint``, restarts them when they exit, and stops them."""

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Self

from emulator.job_queue import Worker
from emulator.load_balancer import LoadBalancer
from emulator.options import NetworkVolume
from emulator.server import Emulator

_MAX_RESTART_DELAY_S = 60.0
# Seconds between two checks whether a worker is idle.
_IDLE_CHECK_S = 0.1
# Maximum size of an excerpt from the log of a worker that exited or whose startup failed.
_EXCERPT_LINES = 20
_EXCERPT_BYTES = 8_000
# Matches the worker's own warnings in its log; vLLM's lines have another format.
_WARNING_LINE = re.compile(r"^\S+ \S+ WARNING +worker\S*: (.+)$", re.MULTILINE)
# A process that leads a worker's process group, and kills it when its own standard input is closed.
# The input closes however the emulator exits. Otherwise the SDK of an orphaned worker would poll
# a closed port forever.
_GUARD_COMMAND = ("sh", "-c", "read -r _; kill -KILL 0")


@dataclass(frozen=True)
class WorkerProcessGroup:
    """A worker's process group, which takes the place of a container.

    The group's leader is the guard, a process that kills the group when the emulator exits. The
    group is not the terminal's, so Ctrl-C doesn't reach it.
    """

    guard: asyncio.subprocess.Process
    process: asyncio.subprocess.Process

    @classmethod
    async def start(cls, command: Sequence[str], environ: Mapping[str, str], log: Path) -> Self:
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        guard = await asyncio.create_subprocess_exec(
            *_GUARD_COMMAND, stdin=pipe, stdout=null, stderr=null, process_group=0
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

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal as to a container: SIGTERM to the first process, other signals to all."""
        with contextlib.suppress(ProcessLookupError):
            if number is signal.SIGTERM:
                self.process.terminate()
            else:
                os.killpg(self.guard.pid, number)

    async def wait(self) -> int:
        """Wait for the first process to exit, and return its exit status."""
        return await self.process.wait()

    async def kill(self) -> None:
        """Kill the whole group: other processes may still run after the first one has exited."""
        self.send_signal(signal.SIGKILL)
        await self.process.wait()
        await self.guard.wait()


@dataclass
class Fleet:
    """Runs a number of workers and restarts those that exit. An async context manager.

    With the option ``idle_timeout_s``, a worker runs only while there are jobs, as on an endpoint
    that is scaled to zero.
    """

    emulator: Emulator | LoadBalancer
    command: Sequence[str]
    environ: Mapping[str, str]  # to which the emulator's variables are added
    logs: Path  # directory for one log per worker
    announce: Callable[[str], None]  # called with messages about workers

    def __post_init__(self) -> None:
        self.ready = asyncio.Event()  # set when the first worker is ready
        self._queue = self.emulator.queue
        self._supervisors: list[asyncio.Task[None]] = []
        self._idle_ids: set[str] = set()  # workers that were stopped because they were idle

    def start_workers(self, count: int) -> None:
        # Remove logs of an earlier run.
        for log in self.logs.glob("worker-*.log"):
            log.unlink()
        volumes = cycle(self.emulator.options.volumes or (None,))
        for number, volume in zip(range(1, count + 1), volumes, strict=False):
            if volume:
                volume.directory.mkdir(parents=True, exist_ok=True)
            worker = self._queue.get_worker(f"worker-{number}")
            self._supervisors.append(asyncio.create_task(self._supervise(worker, volume)))

    async def run_until_event(self, event: asyncio.Event) -> None:
        """Let the workers run until the event is set; raise the error if one can't be started."""
        first_exit = asyncio.wait(self._supervisors, return_when=asyncio.FIRST_COMPLETED)
        await _wait_for_first(event.wait(), first_exit)
        for supervisor in self._supervisors:
            if supervisor.done():
                supervisor.result()

    async def drain(self, grace_s: float, stop_now: asyncio.Event) -> None:
        """Send SIGTERM to the workers, close the queue, and wait until the workers have exited.

        The wait ends after ``grace_s`` seconds, or when ``stop_now`` is set.
        """
        for worker in self._queue.workers.values():
            if worker.process is not None:
                worker.process.send_signal(signal.SIGTERM)
        # Close the queue only after the signals: closing ends long polls, and an SDK that hasn't
        # received its signal would immediately poll again.
        self._queue.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await _wait_for_first(stop_now.wait(), asyncio.wait(self._supervisors))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for supervisor in self._supervisors:
            supervisor.cancel()
        await asyncio.gather(*self._supervisors, return_exceptions=True)

    async def _supervise(self, worker: Worker, volume: NetworkVolume | None) -> None:
        failures, place = 0, f" on {volume.id}" if volume else ""
        queue, is_scaled = self._queue, self.emulator.options.idle_timeout_s is not None
        while not queue.is_closed:
            if is_scaled and failures == 0:
                await queue.changed.wait_for(lambda: queue.has_available_jobs or queue.is_closed)
                if queue.is_closed:
                    return
            log = self.logs / f"{worker.id}.log"
            log_offset = log.stat().st_size if log.exists() else 0
            self.announce(f"{worker.id} starts{place} (its log: {log})")
            was_ready, is_explained, status = await self._run_worker(
                worker, volume, log, log_offset
            )
            if queue.is_closed:
                return
            if worker.id in self._idle_ids:
                self._idle_ids.discard(worker.id)
                self.announce(f"{worker.id} was idle and has stopped; it starts when jobs wait")
                continue
            failures = 0 if was_ready else failures + 1
            worker.unhealthy = failures > 0
            delay_s = min(2.0**failures, _MAX_RESTART_DELAY_S)
            waits_for_jobs = is_scaled and failures == 0
            plan = "it starts when jobs wait" if waits_for_jobs else f"restarting in {delay_s:g} s"
            signals = {-number: f"by {number.name}" for number in signal.Signals}
            how = f"with status {status}" if status >= 0 else f"by signal {-status}"
            self.announce(f"{worker.id} exited {signals.get(status, how)}; {plan}")
            if (failures or status > 0) and not is_explained:
                self.announce(_format_log_excerpt(log, log_offset))
            await queue.changed.wait_for(lambda: queue.is_closed, delay_s)

    async def _run_worker(
        self, worker: Worker, volume: NetworkVolume | None, log: Path, log_offset: int
    ) -> tuple[bool, bool, int]:
        """Run a worker until it exits.

        Returns:
            Whether it became ready, whether its failed start was announced, and its exit status.
        """
        start = time.monotonic()
        mount = volume.worker_environ if volume else {}
        environ = {**self.environ, **self.emulator.worker_environ(worker.id), **mount}
        process = await WorkerProcessGroup.start(self.command, environ, log)
        worker.process = process
        worker.starts += 1
        if self._queue.is_closed:  # closed while the process was starting
            process.send_signal(signal.SIGTERM)
        try:
            startup = worker.changed.wait_for(lambda: worker.ready or worker.has_failed_start)
            await _wait_for_first(process.wait(), startup)
            elapsed = f"after {time.monotonic() - start:.1f} s"
            if worker.has_failed_start:
                self.announce(
                    f"{worker.id} failed to start {elapsed}; it answers jobs with the reason:"
                )
                self.announce(_format_log_excerpt(log, log_offset))
            if worker.ready:
                self.announce(f"{worker.id} is ready {elapsed}")
                for warning in _WARNING_LINE.findall(_read_log_from(log, log_offset)):
                    self.announce(f"    {warning}")
                self.ready.set()
            await _wait_for_first(process.wait(), self._wait_until_idle(worker))
            if process.process.returncode is None and not self._queue.is_closed:
                self._idle_ids.add(worker.id)
                process.send_signal(signal.SIGTERM)
            status = await process.wait()
            return worker.ready, worker.has_failed_start, status
        finally:
            await process.kill()
            self._queue.handle_worker_exit(worker)

    async def _wait_until_idle(self, worker: Worker) -> None:
        """Wait until a worker has had no job for ``idle_timeout_s``, if that is set."""
        timeout_s = self.emulator.options.idle_timeout_s
        busy_at = time.monotonic()
        while timeout_s is None or time.monotonic() < busy_at + timeout_s:
            await asyncio.sleep(_IDLE_CHECK_S)
            if self._queue.is_busy(worker) or self._queue.is_closed:
                busy_at = time.monotonic()


async def _wait_for_first(*awaitables: Coroutine[Any, Any, object]) -> None:
    tasks = [asyncio.create_task(awaitable) for awaitable in awaitables]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _read_log_from(log: Path, offset: int) -> str:
    with log.open("rb") as file:
        file.seek(offset)
        return file.read().decode(errors="replace")


def _format_log_excerpt(log: Path, offset: int) -> str:
    begin = max(offset, log.stat().st_size - _EXCERPT_BYTES)
    lines = _read_log_from(log, begin).splitlines() or ["(it printed nothing)"]
    return "\n".join(f"    {line}" for line in lines[-_EXCERPT_LINES:])
