"""Runs Python scripts in forks of a process that has imported vLLM.

The import is the same for each script, and takes most of its startup time.
"""

import atexit
import io
import multiprocessing
import os
import runpy
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from setproctitle import setproctitle

from support import ROOT

# Modules that a worker and its engine core import.
_PRELOADED = [
    "vllm.v1.engine.async_llm",
    "vllm.entrypoints.openai.api_server",
    "vllm.entrypoints.serve.sagemaker.api_router",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.llama",
]
# Prefixes of variables that are read on import: in a fork they would have no effect.
READ_ON_IMPORT = ("VLLM_", "HF_HOME", "HF_HUB", "HF_ENDPOINT", "TORCH", "TRANSFORMERS", "PYTHON")
LOGGING_STREAM = "VLLM_LOGGING_STREAM"

_context = multiprocessing.get_context("forkserver")


class ForkedScript:
    """A running or exited script, with the methods of `subprocess.Popen` that tests use."""

    def __init__(
        self, script: Sequence[str | Path], environ: Mapping[str, str], stderr: Path, stdout: Path
    ) -> None:
        start_server()
        arguments = ([*map(str, script)], dict(environ), stderr, stdout)
        self._process = _context.Process(target=_run, args=arguments)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        # From then on, all its processes can be killed together.
        while not self._has_own_session():
            time.sleep(0.01)

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the script exits; return its exit status."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutError
        return self._process.exitcode

    def _has_own_session(self) -> bool:
        """Return whether the script has begun, or has already exited."""
        try:
            return os.getsid(self.pid) == self.pid
        except ProcessLookupError:
            return True

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def can_fork(command: Sequence[str | Path], environ: Mapping[str, str]) -> bool:
    """Return whether a command is a script that behaves in the same way in a fork."""
    read = any(name.startswith(READ_ON_IMPORT) for name in environ)
    return Path(command[0]).suffix == ".py" and not read


def keep_server() -> None:
    """Use the running process also in forks of this one, which can't wait for it as its parent."""
    server: Any = forkserver
    server.ensure_running = server._forkserver.ensure_running = lambda: None


def start_server() -> None:
    """Start the process that imports vLLM, unless it is running, without a test's variables."""
    from worker.settings.environment import LIBRARY_DEFAULTS  # noqa: PLC0415  # benchmarks have no `src`

    names = [name for name in os.environ if name.startswith(READ_ON_IMPORT)]
    saved = {name: os.environ.pop(name) for name in names}
    # vLLM before 0.31 reads it on import; a worker sets it before its import.
    os.environ[LOGGING_STREAM] = LIBRARY_DEFAULTS[LOGGING_STREAM]
    _context.set_forkserver_preload(_PRELOADED)
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop(LOGGING_STREAM, None)
        os.environ.update(saved)


def _run(script: list[str], environ: dict[str, str], stderr: Path, stdout: Path) -> None:
    """Run the script in this process, like ``python -u``, in its own session."""
    os.setsid()
    os.chdir(ROOT)
    # The script's child processes start as usual, not by forks of the first process.
    multiprocessing.set_start_method(None, force=True)
    # Set the title before the environment is replaced: the kernel stores them next to each other.
    setproctitle(" ".join([sys.executable, *script]))
    for stream, file in ((sys.stdout, stdout), (sys.stderr, stderr)):
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
        # multiprocessing exits without calling them.
        atexit._run_exitfuncs()
