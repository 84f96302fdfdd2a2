"""A worker that serves plain HTTP (`--serve`), as an operator starts it."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.processes.background import Background
from support.processes.commands import SCRIPT
from support.processes.forked import forked

# What the tests' server asks for.
KEY = "sk-served"
ADDRESS = re.compile(r"Uvicorn running on (http://\S+)")


@dataclass(frozen=True)
class HttpWorker(Background):
    """A worker that is ready, with the address that it has printed."""

    @property
    def url(self) -> str:
        found = ADDRESS.search(self.output)
        assert found, self.output
        return found[1]

    def peak(self, *, begin: bool = False) -> int:
        """Return the most bytes of memory that it has had; begin to measure anew."""
        process = Path("/proc") / str(self.process.pid)
        if begin:
            (process / "clear_refs").write_text("5")
        found = re.search(r"VmHWM:\s+(\d+) kB", (process / "status").read_text())
        assert found
        return int(found[1]) * 1024


@contextmanager
def http_worker(environ: Mapping[str, str], log: Path, *options: str) -> Iterator[HttpWorker]:
    """Start a worker on a port of its own; leaving stops it, if it still runs."""
    with forked([SCRIPT, "--serve", "--port", "0", *options], environ, log) as running:
        worker = HttpWorker(running.process, log)
        worker.wait_for_output("Uvicorn running on ")
        yield worker
        worker.process.terminate()
        worker.ended()
