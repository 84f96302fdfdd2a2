"""A running core: vLLM's client for it, its processes, its output and its exit."""

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
from vllm.v1.metrics.loggers import StatLoggerBase

from worker import logs
from worker.children import Child, signal_name
from worker.engine.seam.protocols import Client, RequestState
from worker.engine.seam.translation import is_out_of_memory
from worker.errors import EngineDead
from worker.logs.reader import ERRORS, MAX_SEARCHED_CHARS

# Seconds to wait for the exit of a process that was killed, or whose death was noticed.
EXIT_TIMEOUT_S = 5.0
# Exit codes of a core that was ended from outside, not by a request.
EXTERNAL_EXIT_CODES = (0, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
OUT_OF_MEMORY_HINT = (
    "the GPU's memory is full: lower GPU_MEMORY_UTILIZATION, MAX_NUM_SEQS or MAX_NUM_BATCHED_TOKENS"
)
OUTPUT_FDS = (1, 2)
# Maximum seconds to wait until the reader has passed on a core's last output. Passing it on takes
# milliseconds, unless the machine is busy, or another process has inherited a pipe.
DRAIN_TIMEOUT_S = 5.0


class CoreFailed(RuntimeError):
    """The last error in the output of a core that has exited, as one line.

    ``loader_function`` is the function of vLLM's loader that raised it: "initialize_model" or
    "load_weights"; empty for other errors.
    """

    def __init__(self, message: str, loader_function: str = "") -> None:
        super().__init__(message)
        self.loader_function = loader_function


class CoreOutput:
    """One core's output; a child process copies it to the worker's output and finds its errors."""

    def __init__(self) -> None:
        self._error_file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close_and_get_error()
        self._reader: Child | None = None

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """Capture the output of this process, and of processes that it starts, during a block."""
        # If the core started this tracker of ``multiprocessing``, the tracker would inherit the
        # pipes, and keep them open after the core's exit.
        resource_tracker.ensure_running()
        originals = [os.dup(fd) for fd in OUTPUT_FDS]
        self._reader = logs.redirect_to_reader(
            OUTPUT_FDS, originals, ERRORS, self._error_file.fileno()
        )
        try:
            yield
        finally:
            for fd, original in zip(OUTPUT_FDS, originals, strict=True):
                os.dup2(original, fd)
                os.close(original)

    def close_and_get_error(self) -> CoreFailed | None:
        """Stop reading the output of an exited core; return its last error, or None."""
        if self._reader is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._reader.wait(DRAIN_TIMEOUT_S)
        self._reader.kill()
        self._reader.wait()
        self._reader = None
        # ``pread`` ignores the file position, which this process shares with the reader.
        content = os.pread(self._error_file.fileno(), 2 * MAX_SEARCHED_CHARS, 0)
        self._error_file.close()
        lines = content.decode(errors="replace").split("\n")
        return CoreFailed(*lines[:2]) if lines[0] else None


class Heartbeat(StatLoggerBase):  # type: ignore[misc]  # Any
    """The time of the last message from vLLM's core, which sends one after every step.

    vLLM uses this object as a logger of statistics, its public way to observe every message.
    """

    def __init__(self) -> None:
        self.last_at = time.monotonic()

    def record(self, *_: Any, **__: Any) -> None:
        self.last_at = time.monotonic()

    def log_engine_initialized(self) -> None:
        """Do nothing; vLLM requires this method."""


class Core:
    """One engine core of vLLM, from its startup to its exit, with its metrics."""

    def __init__(
        self, client: Client, metrics: CollectorRegistry, heartbeat: Heartbeat, output: CoreOutput
    ) -> None:
        self.client = client
        self.metrics = metrics
        self.heartbeat = heartbeat
        self._output = output
        self._ranks = client.engine_core.resources.engine_manager.processes
        # A rank has one process for each GPU. Store the processes, to kill them even if their rank
        # has exited before them.
        self._processes = list(self._live_processes())

    @property
    def unfinished_requests(self) -> list[RequestState]:
        """The unfinished requests of the core, also after its death."""
        return list(self.client.output_processor.request_states.values())

    @property
    def is_idle(self) -> bool:
        """Whether all requests and all calls (which load adapters, for example) have finished."""
        return not (self.client.output_processor.has_unfinished_requests() or self._pending_calls)

    def prefilling_request_ids(self, until: float) -> set[str]:
        """Return ids of requests without output that arrived by ``until`` (``time.monotonic``)."""
        until_unix = time.time() - time.monotonic() + until
        return {
            request.external_req_id
            for request in self.unfinished_requests
            if request.is_prefilling and request.stats.arrival_time <= until_unix
        }

    @property
    def decoding_request_ids(self) -> set[str]:
        return {
            request.external_req_id
            for request in self.unfinished_requests
            if not request.is_prefilling
        }

    @property
    def is_paused(self) -> bool:
        """Whether a process of the core is paused by a signal such as SIGSTOP."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return any(process.status() == psutil.STATUS_STOPPED for process in self._processes)
        return False

    @property
    def initial_process_count(self) -> int:
        return len(self._processes)

    @property
    def cpu_time_s(self) -> float:
        """CPU seconds of the processes that the core was started with, except exited processes."""
        total_s = 0.0
        for process in self._processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total_s += times.user + times.system
        return total_s

    @property
    def is_compiling(self) -> bool:
        """Whether the core has started processes since its startup; these are usually compilers."""
        return bool(set(self._live_processes()) - set(self._processes))

    def kill(self) -> None:
        """Kill the core's processes, and wait for their exit."""
        processes = {*self._processes, *self._live_processes()}
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        # Join the children of this process first: only ``multiprocessing`` may wait for them.
        for rank in self._ranks:
            rank.join(EXIT_TIMEOUT_S)
        psutil.wait_procs(processes, EXIT_TIMEOUT_S)

    def has_crashed(self) -> bool:
        """Wait for a dead core's exit; return whether it crashed, and wasn't ended from outside."""
        exited = connection.wait([rank.sentinel for rank in self._ranks], EXIT_TIMEOUT_S)
        for rank in self._ranks:
            if rank.sentinel in exited:
                # The sentinel of a process is ready a moment before its exit code is known.
                rank.join(EXIT_TIMEOUT_S)
        # Without exit codes, the core has reported its death but has not exited: it has crashed.
        codes = self._exit_codes
        return not codes or any(code not in EXTERNAL_EXIT_CODES for code in codes)

    @property
    def has_exited(self) -> bool:
        """Whether a process of the core has exited."""
        return bool(self._exit_codes)

    async def fail_calls_and_close(self) -> str:
        """Fail a dead core's pending calls, and close the core in a thread; return why it died."""
        # vLLM would let the calls that the core did not answer wait forever.
        for call in self._pending_calls:
            call.set_exception(EngineDead())
        return await asyncio.to_thread(self.stop_and_get_reason)

    def stop_and_get_reason(self) -> str:
        """Shut down a core that no longer responds; return why it died, as one line."""
        self.client.shutdown()
        self.kill()
        error = self._output.close_and_get_error()
        signals = [signal_name(-code) for code in self._exit_codes if code < 0]
        unknown = f"ended by {signals[0]}" if signals else "for an unknown reason"
        reason = str(error or unknown)
        return f"{reason} ({OUT_OF_MEMORY_HINT})" if is_out_of_memory(reason) else reason

    @property
    def _pending_calls(self) -> list[asyncio.Future[Any]]:
        calls = self.client.engine_core.utility_results.values()
        return [call for call in calls if not call.done()]

    @property
    def _exit_codes(self) -> list[int]:
        return [rank.exitcode for rank in self._ranks if rank.exitcode is not None]

    def _live_processes(self) -> Iterator[psutil.Process]:
        for rank in self._ranks:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(rank.pid)
                yield from (process, *process.children(recursive=True))
