"""Programs that print the URL on which they listen: ``--serve``, proxies and other servers."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.processes.background import BackgroundProcess, start_command
from support.processes.commands import SCRIPT
from support.processes.memory import peak_bytes, reset_peaks

# The key of the tests' server.
KEY = "sk-served"
ADDRESS = re.compile(r"(?:Uvicorn running on|The endpoint:) +(http://[^\s\"]+)")


@dataclass(frozen=True)
class ServerProcess(BackgroundProcess):
    """A program that listens, with the URL that it has printed."""

    @property
    def url(self) -> str:
        match = ADDRESS.search(self.output)
        assert match, self.output
        return match[1]

    def peak(self, *, begin: bool = False) -> int:
        """Return the peak memory of the process in bytes; ``begin`` resets the peak first."""
        if begin:
            reset_peaks([self.process.pid])
        return peak_bytes([self.process.pid])


@contextmanager
def start_server(
    command: Sequence[str | Path], environ: Mapping[str, str], log: Path
) -> Iterator[ServerProcess]:
    """Start a program and wait for the URL that it prints; terminate it at the end of the block.

    Args:
        command: A command that chooses a free port (``--port 0``). See ``start_command``.
        environ: The whole environment.
        log: File for the output.
    """
    with start_command(command, environ, log) as running:
        program = ServerProcess(running.process, log)
        program.wait_for_output("Uvicorn running on ")
        yield program
        program.process.terminate()
        program.wait_for_exit()


@contextmanager
def http_worker(environ: Mapping[str, str], log: Path, *options: str) -> Iterator[ServerProcess]:
    """Start a worker that serves plain HTTP."""
    with start_server([SCRIPT, "--serve", "--port", "0", *options], environ, log) as worker:
        yield worker
