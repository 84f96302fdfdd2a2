"""The worker over plain HTTP, as an operator starts it: a process of its own."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support import ROOT

START_S = 120
END_S = 60
ADDRESS = re.compile(r"Uvicorn running on (http://\S+)")


@dataclass(frozen=True)
class Serving:
    """A server that is ready; ``log`` is all that it says."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path


@contextmanager
def serving(environ: Mapping[str, str], log: Path, *options: str) -> Iterator[Serving]:
    """Start a server on a port of its own; leaving stops it, if it still runs."""
    command = [sys.executable, "-u", "src/handler.py", "--serve", "--port", "0", *options]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environ,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Serving(process, _address(process, log), log)
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_S
    while not (told := ADDRESS.search(log.read_text(errors="replace"))):
        assert process.poll() is None, log.read_text(errors="replace")
        assert time.monotonic() < deadline, log.read_text(errors="replace")
        time.sleep(0.05)
    return told[1]
