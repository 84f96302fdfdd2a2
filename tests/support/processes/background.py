"""Commands in the background, each in its own session, with its output in a file."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from support import ROOT
from support.processes.forking import ForkedScript, can_fork

# Seconds after which a hanging test fails. On an idle machine with two cores, every wait takes less
# than a tenth of this.
HUNG_S = 300.0


def wait_until(
    condition: Callable[[], object], pause: Callable[[], object] = lambda: time.sleep(0.01)
) -> None:
    """Wait until a condition holds; it is checked after each pause."""
    deadline = time.monotonic() + HUNG_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        pause()


async def poll_until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds, while the event loop's other tasks continue."""
    async with asyncio.timeout(HUNG_S):
        while not condition():
            await asyncio.sleep(0.001)


async def settle() -> None:
    """Run all tasks of this loop that wait neither for time nor for another process."""
    for _ in range(20):
        await asyncio.sleep(0)


def pids_with_variable(name: str, value: str) -> list[int]:
    """Return the ids of the processes that were started with this value of a variable."""
    running = psutil.process_iter(["environ"])
    return [
        process.pid for process in running if (process.info["environ"] or {}).get(name) == value
    ]


class Process(Protocol):
    """The methods of `subprocess.Popen` that tests use."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: int, /) -> None: ...
    def terminate(self) -> None: ...


@dataclass(frozen=True)
class BackgroundProcess:
    """A command that is running or has exited."""

    process: Process
    log: Path

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for_output(self, text: str, times: int = 1) -> None:
        """Wait until a text has been printed; fail if the command exits without printing it."""

        def is_printed() -> bool:
            return self.output.count(text) >= times

        wait_until(lambda: is_printed() or self.process.poll() is not None)
        assert is_printed(), self.output

    def wait_for_exit(self) -> int:
        """Wait until the command exits; return its exit status."""
        return self.process.wait(HUNG_S)

    def session_pids(self) -> list[int]:
        """Return the ids of the running processes in the command's session, the oldest first."""
        return [process.pid for process in self._running()]

    def core_pids(self) -> list[int]:
        """Return the ids of the session's processes whose titles are those of engine cores."""
        return [
            process.pid
            for process in self._running()
            if "EngineCore" in str(process.info["cmdline"])
        ]

    def listening_port(self) -> int | None:
        """Return the port on which the session listens; None if it doesn't listen yet."""
        for process in self._running():
            with suppress(psutil.Error):
                for connection in process.net_connections("inet"):
                    if connection.status == psutil.CONN_LISTEN:
                        return int(connection.laddr.port)
        return None

    def _running(self) -> list[psutil.Process]:
        running = []
        for process in psutil.process_iter(["cmdline", "create_time", "status"]):
            with suppress(ProcessLookupError):
                ours = os.getsid(process.pid) == self.process.pid
                if ours and process.info["status"] != psutil.STATUS_ZOMBIE:
                    running.append(process)
        return sorted(running, key=lambda process: process.info["create_time"])

    def kill(self) -> None:
        """Kill all processes of the session, as when the platform removes a container."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def start_command(
    command: Sequence[str | Path],
    environ: Mapping[str, str],
    log: Path,
    stdout: Path | None = None,
    folder: Path = ROOT,
) -> Iterator[BackgroundProcess]:
    """Start a command; at the end of the block, kill all its processes that are still running.

    If the command starts with a script's file instead of an interpreter, it runs in a fork of a
    process that has imported vLLM, which saves two thirds of the startup time, unless the
    environment has variables that libraries read on import, or the working directory is not the
    repository's root. The standard output has its own file if ``stdout`` is given.
    """
    stdout = stdout or log
    for file in {log, stdout}:
        file.write_bytes(b"")
    process: Process
    if folder == ROOT and can_fork(command, environ):
        process = ForkedScript(command, environ, log, stdout)
    else:
        interpreter = [sys.executable, "-u"] if Path(command[0]).suffix == ".py" else []
        with log.open("ab") as errors, stdout.open("ab") as output:
            process = subprocess.Popen(
                [*interpreter, *command],
                cwd=folder,
                env=environ,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
    running = BackgroundProcess(process, log)
    try:
        yield running
    finally:
        running.kill()
