"""Programs that listen where they say: ``--serve``, proxies and other servers."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.processes.background import Background, background
from support.processes.commands import SCRIPT
from support.processes.memory import forget_peaks, peak

# What the tests' server asks for.
KEY = "sk-served"
ADDRESS = re.compile(r"(?:Uvicorn running on|The endpoint:) +(http://[^\s\"]+)")


@dataclass(frozen=True)
class Served(Background):
    """A program that listens, with the address that it has printed."""

    @property
    def url(self) -> str:
        found = ADDRESS.search(self.output)
        assert found, self.output
        return found[1]

    def peak(self, *, begin: bool = False) -> int:
        """Return the most bytes of memory that it has had; begin to measure anew."""
        if begin:
            forget_peaks([self.process.pid])
        return peak([self.process.pid])


@contextmanager
def served(
    command: Sequence[str | Path], environ: Mapping[str, str], log: Path
) -> Iterator[Served]:
    """Start a program, and wait for the address that it prints; leaving stops it in order.

    Args:
        command: chooses a port of its own (``--port 0``). See ``background``.
        environ: the whole environment.
        log: the file for its output.
    """
    with background(command, environ, log) as running:
        program = Served(running.process, log)
        program.wait_for_output("Uvicorn running on ")
        yield program
        program.process.terminate()
        program.ended()


@contextmanager
def http_worker(environ: Mapping[str, str], log: Path, *options: str) -> Iterator[Served]:
    """Start a worker that serves plain HTTP."""
    with served([SCRIPT, "--serve", "--port", "0", *options], environ, log) as worker:
        yield worker
