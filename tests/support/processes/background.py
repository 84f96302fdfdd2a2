"""Commands in the background: every one in a session of its own, its output in a file."""

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
from support.processes.forked import Forked, can_fork

# Seconds; ends a test that hangs, and no other: nothing that is waited for here takes a tenth of
# it on an idle machine with two cores.
HUNG_S = 300.0


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds.

    Raises:
        TimeoutError: it never does.
    """
    deadline = time.monotonic() + HUNG_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)


async def eventually(condition: Callable[[], object]) -> None:
    """Wait likewise, while the event loop's other tasks go on.

    Raises:
        TimeoutError: it never holds.
    """
    async with asyncio.timeout(HUNG_S):
        while not condition():
            await asyncio.sleep(0.001)


def with_variable(name: str, value: str) -> list[int]:
    """Find the processes that began with a variable of this value."""
    running = psutil.process_iter(["environ"])
    return [one.pid for one in running if (one.info["environ"] or {}).get(name) == value]


class Process(Protocol):
    """What tests use of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: int, /) -> None: ...
    def terminate(self) -> None: ...


@dataclass(frozen=True)
class Background:
    """A command that runs, or has ended."""

    process: Process
    log: Path

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for_output(self, text: str, times: int = 1) -> None:
        """Wait until a text has been printed; fail if the command ends without it."""

        def printed() -> bool:
            return self.output.count(text) >= times

        wait_until(lambda: printed() or self.process.poll() is not None)
        assert printed(), self.output

    def ended(self) -> int:
        """Wait for the end, and return the exit status."""
        return self.process.wait(HUNG_S)

    def session(self) -> list[int]:
        """Find the processes of its session that still run, in the order of their start."""
        return [process.pid for process in self._running()]

    def cores(self) -> list[int]:
        """Find its processes that are cores of engines, by their titles."""
        return [one.pid for one in self._running() if "EngineCore" in str(one.info["cmdline"])]

    def port(self) -> int | None:
        """Find the port on which one of them listens, which it may have chosen; None: not yet."""
        for process in self._running():
            with suppress(psutil.Error):
                for one in process.net_connections("inet"):
                    if one.status == psutil.CONN_LISTEN:
                        return int(one.laddr.port)
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
        """End all of its processes, as with a container that is taken away."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def background(
    command: Sequence[str | Path],
    environ: Mapping[str, str],
    log: Path,
    stdout: Path | None = None,
    folder: Path = ROOT,
) -> Iterator[Background]:
    """Start a command; leaving kills what still runs of it.

    Args:
        command: with its arguments. One that begins with a script's file, not with an interpreter,
            begins in a fork of a process that has vLLM in memory, which saves two thirds of a
            start; unless the environment holds what libraries read on import.
        environ: the whole environment.
        log: the file for its output.
        stdout: a file of its own for the standard output.
        folder: where it runs; elsewhere than in the repository's root nothing is forked.
    """
    stdout = stdout or log
    for file in {log, stdout}:
        file.write_bytes(b"")
    process: Process
    if folder == ROOT and can_fork(command, environ):
        process = Forked(command, environ, log, stdout)
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
    running = Background(process, log)
    try:
        yield running
    finally:
        running.kill()
