"""Python scripts that begin in a fork of a process that has vLLM in memory: no import, no wait.

The import is the same in every start, and takes most of its time. A script whose environment holds
what libraries read on import (the hub's address, vLLM's level of logging) can't begin so. Starts
as an operator types them don't either (`background`, `run`).
"""

import atexit
import io
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from setproctitle import setproctitle

from support import ROOT
from support.processes.background import Background, killed_at_the_end, wait_until
from support.processes.commands import Ran
from worker.settings.environment import EXPORTS

# What a worker imports, and after it the core of its engine.
_IMPORTED = [
    "vllm.v1.engine.async_llm",
    "vllm.entrypoints.openai.api_server",
    "vllm.entrypoints.serve.sagemaker.api_router",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.llama",
]
# Beginnings of the names of variables that are read on import.
READ_ON_IMPORT = ("VLLM_", "HF_HOME", "HF_HUB", "HF_ENDPOINT", "TORCH", "TRANSFORMERS", "PYTHON")
LOGGING_STREAM = "VLLM_LOGGING_STREAM"

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(_IMPORTED)


class Forked:
    """A script that runs, or has ended, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process
        process.start()
        assert process.pid is not None
        self.pid = process.pid
        # From then on it can be killed with all of its processes.
        wait_until(self._has_a_session)

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit status.

        Raises:
            TimeoutError: it did not end within so many seconds.
        """
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutError
        return self._process.exitcode

    def _has_a_session(self) -> bool:
        """Return whether it has begun, or has ended already."""
        try:
            return os.getsid(self.pid) == self.pid
        except ProcessLookupError:
            return True

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


@contextmanager
def forked(
    script: Sequence[str | Path], environ: Mapping[str, str], log: Path, stdout: Path | None = None
) -> Iterator[Background]:
    """Start a script in the repository's root; leaving kills what still runs of it.

    Args:
        script: its file, with its arguments.
        environ: the whole environment.
        log: the file for its output.
        stdout: a file of its own for the standard output.
    """
    read = [name for name in environ if name.startswith(READ_ON_IMPORT)]
    assert not read, f"{read} would have no effect, since vLLM is imported already"
    _ensure_imported()
    for file in {log, stdout or log}:
        file.write_bytes(b"")
    arguments = ([*map(str, script)], dict(environ), log, stdout or log)
    process = Forked(_context.Process(target=_run, args=arguments))
    with killed_at_the_end(Background(process, log)) as running:
        yield running


def run_forked(environ: Mapping[str, str], *script: str | Path) -> Ran:
    """Run a script to its end."""
    with tempfile.TemporaryDirectory() as folder:
        log, stdout = Path(folder, "log"), Path(folder, "stdout")
        with forked(script, environ, log, stdout) as running:
            status = running.ended()
        return Ran(script, status, stdout.read_text(), log.read_text())


def _ensure_imported() -> None:
    """Start the process that imports vLLM, unless it runs, without what a test has just set."""
    names = [name for name in os.environ if name.startswith(READ_ON_IMPORT)]
    held = {name: os.environ.pop(name) for name in names}
    # Before 0.31 vLLM reads it on import; a worker has exported it by then.
    os.environ[LOGGING_STREAM] = EXPORTS[LOGGING_STREAM]
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop(LOGGING_STREAM, None)
        os.environ.update(held)


def _run(script: list[str], environ: dict[str, str], log: Path, stdout: Path) -> None:
    """Run the script in this process, as ``python -u`` would, with a session of its own."""
    os.setsid()
    os.chdir(ROOT)
    # Its own child processes begin as in any other process, not by a fork of the first one.
    multiprocessing.set_start_method(None, force=True)
    # Before the environment is replaced, next to which the kernel keeps the title.
    setproctitle(" ".join([sys.executable, *script]))
    for stream, file in ((sys.stdout, stdout), (sys.stderr, log)):
        with file.open("ab") as opened:
            os.dup2(opened.fileno(), stream.fileno())
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(write_through=True)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = script
    try:
        runpy.run_path(script[0], run_name="__main__")
    finally:
        # multiprocessing ends without them.
        atexit._run_exitfuncs()
