"""A core that runs: vLLM's client of it, its processes, what they print, and how they end."""

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import connection, resource_tracker
from typing import Any

import psutil
from prometheus_client import CollectorRegistry

from worker import logs
from worker.children import Child, signal_name
from worker.engine.run.healing.watchdog import Heartbeat
from worker.engine.seam.protocols import Client, RequestState
from worker.engine.seam.translation import is_out_of_memory
from worker.errors import EngineDead
from worker.logs.reader import ERRORS, LONGEST_SEARCHED

# Seconds until a process is gone that was killed, or whose death was noticed.
ENDS_S = 5.0
# How a core ends that somebody else has ended: no request has brought it about.
ENDED_FROM_OUTSIDE = (0, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
LESS_MEMORY = (
    "the GPU's memory is full: lower GPU_MEMORY_UTILIZATION, MAX_NUM_SEQS or MAX_NUM_BATCHED_TOKENS"
)
STREAMS = (1, 2)
# Seconds that a reader gets for what a core has printed at its end; it needs milliseconds of them,
# unless the machine is busy, or another process has inherited a pipe.
DRAIN_S = 5.0


class CoreOutput:
    """The output of one core: a child process passes it on and searches it."""

    def __init__(self) -> None:
        self._note = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._reader: Child | None = None

    @contextlib.contextmanager
    def captured(self) -> Iterator[None]:
        """Read what the processes print that begin in this block.

        What this process prints until the block ends goes the same way.
        """
        # It would inherit the pipes, and live longer than the core.
        resource_tracker.ensure_running()
        targets = [os.dup(stream) for stream in STREAMS]
        self._reader = logs.redirect(STREAMS, targets, ERRORS, self._note.fileno())
        try:
            yield
        finally:
            for stream, target in zip(STREAMS, targets, strict=True):
                os.dup2(target, stream)
                os.close(target)

    def close(self) -> str | None:
        """End the reader of a core that has ended; return the last error, in one line."""
        if self._reader is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._reader.wait(DRAIN_S)
        self._reader.kill()
        self._reader.wait()
        self._reader = None
        # Read at its place: the reader shares the position.
        text = os.pread(self._note.fileno(), LONGEST_SEARCHED, 0).decode(errors="replace")
        self._note.close()
        return text.partition("\n")[0] or None


class Core:
    """One core, from its start to its end, with the metrics of it alone."""

    def __init__(
        self, client: Client, metrics: CollectorRegistry, heartbeat: Heartbeat, output: CoreOutput
    ) -> None:
        self.client = client
        self.metrics = metrics
        self.heartbeat = heartbeat
        self._output = output
        self._ranks = client.engine_core.resources.engine_manager.processes
        # A rank has one for each GPU, which must not outlive it.
        self._processes = list(self._running())

    @property
    def requests(self) -> list[RequestState]:
        """The requests that the core has not answered to their end, dead or alive."""
        return list(self.client.output_processor.request_states.values())

    @property
    def idle(self) -> bool:
        """Whether it has answered all requests, and all calls, such as those that load adapters."""
        return not (self.client.output_processor.has_unfinished_requests() or self._calls)

    def newcomers(self, until: float) -> set[str]:
        """Return the ids of the requests that have no output yet, and came before a time.

        ``until`` is by ``time.monotonic``.
        """
        until_unix = time.time() - time.monotonic() + until
        return {
            request.external_req_id
            for request in self.requests
            if request.is_prefilling and request.stats.arrival_time <= until_unix
        }

    @property
    def running(self) -> set[str]:
        """The ids of the requests that have some output."""
        return {request.external_req_id for request in self.requests if not request.is_prefilling}

    @property
    def stopped(self) -> bool:
        """Whether a process of it is stopped by a signal."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return any(process.status() == psutil.STATUS_STOPPED for process in self._processes)
        return False

    @property
    def processes(self) -> int:
        """How many processes it was started with."""
        return len(self._processes)

    @property
    def processor_s(self) -> float:
        """The seconds of a processor that it has used since its start."""
        used_s = 0.0
        for process in self._processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                used_s += times.user + times.system
        return used_s

    @property
    def builds(self) -> bool:
        """Whether processes run below it that did not when it was started: compilers."""
        return bool(set(self._running()) - set(self._processes))

    def kill(self) -> None:
        """End its processes at once, and wait until they are gone."""
        processes = {*self._processes, *self._running()}
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        # First those that are children of this process: only ``multiprocessing`` may wait for them.
        for rank in self._ranks:
            rank.join(ENDS_S)
        psutil.wait_procs(processes, ENDS_S)

    def crashed(self) -> bool:
        """Wait for the end of a dead core, and return whether it has ended itself."""
        ended = connection.wait([rank.sentinel for rank in self._ranks], ENDS_S)
        for rank in self._ranks:
            if rank.sentinel in ended:
                # Its pipes are closed a moment before its status is known.
                rank.join(ENDS_S)
        # Without one, it says that it is dead, and does not get as far as its end.
        codes = self._exit_codes
        return not codes or any(code not in ENDED_FROM_OUTSIDE for code in codes)

    async def remove(self) -> str:
        """Remove what is left of a dead core; return why it died. Use on the engine's loop."""
        # vLLM would let the calls wait for ever that the core has not answered.
        for call in self._calls:
            call.set_exception(EngineDead())
        return await asyncio.to_thread(self.close)

    def close(self) -> str:
        """End a core that answers nothing; return why it died, in one line."""
        self.client.shutdown()
        self.kill()
        error = self._output.close()
        signals = [signal_name(-code) for code in self._exit_codes if code < 0]
        reason = error or (f"ended by {signals[0]}" if signals else "for no reason that it told")
        return f"{reason} ({LESS_MEMORY})" if is_out_of_memory(reason) else reason

    @property
    def _calls(self) -> list[asyncio.Future[Any]]:
        calls = self.client.engine_core.utility_results.values()
        return [call for call in calls if not call.done()]

    @property
    def _exit_codes(self) -> list[int]:
        return [rank.exitcode for rank in self._ranks if rank.exitcode is not None]

    def _running(self) -> Iterator[psutil.Process]:
        for rank in self._ranks:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(rank.pid)
                yield from (process, *process.children(recursive=True))
