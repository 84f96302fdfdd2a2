"""Python scripts that begin in a fork of a process that has vLLM in memory: no import, no wait.

The import is the same in every start, and takes most of its time.
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

from setproctitle import setproctitle

from support import ROOT

# What a worker imports, and after it the core of its engine.
_IMPORTED = [
    "vllm.v1.engine.async_llm",
    "vllm.entrypoints.openai.api_server",
    "vllm.entrypoints.serve.sagemaker.api_router",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.llama",
]
# Beginnings of the names of variables that are read on import: they would have no effect in a fork.
READ_ON_IMPORT = ("VLLM_", "HF_HOME", "HF_HUB", "HF_ENDPOINT", "TORCH", "TRANSFORMERS", "PYTHON")
LOGGING_STREAM = "VLLM_LOGGING_STREAM"

_context = multiprocessing.get_context("forkserver")


class Forked:
    """A script that runs, or has ended, with the methods of `subprocess.Popen` that tests use.

    Args:
        script: its file, with its arguments.
        environ: the whole environment.
        stderr: the file for what it logs.
        stdout: the file for what it prints.
    """

    def __init__(
        self, script: Sequence[str | Path], environ: Mapping[str, str], stderr: Path, stdout: Path
    ) -> None:
        _ensure_imported()
        arguments = ([*map(str, script)], dict(environ), stderr, stdout)
        self._process = _context.Process(target=_run, args=arguments)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        # From then on it can be killed with all of its processes.
        while not self._has_a_session():
            time.sleep(0.01)

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


def can_fork(command: Sequence[str | Path], environ: Mapping[str, str]) -> bool:
    """Return whether a command is a script that does the same in a fork."""
    read = any(name.startswith(READ_ON_IMPORT) for name in environ)
    return Path(command[0]).suffix == ".py" and not read


def _ensure_imported() -> None:
    """Start the process that imports vLLM, unless it runs, without what a test has just set."""
    from worker.settings.environment import EXPORTS  # noqa: PLC0415  # benchmarks have no `src`

    names = [name for name in os.environ if name.startswith(READ_ON_IMPORT)]
    held = {name: os.environ.pop(name) for name in names}
    # Before 0.31 vLLM reads it on import; a worker has exported it by then.
    os.environ[LOGGING_STREAM] = EXPORTS[LOGGING_STREAM]
    _context.set_forkserver_preload(_IMPORTED)
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop(LOGGING_STREAM, None)
        os.environ.update(held)


def _run(script: list[str], environ: dict[str, str], stderr: Path, stdout: Path) -> None:
    """Run the script in this process, as ``python -u`` would, with a session of its own."""
    os.setsid()
    os.chdir(ROOT)
    # Its own child processes begin as in any other process, not by a fork of the first one.
    multiprocessing.set_start_method(None, force=True)
    # Before the environment is replaced, next to which the kernel keeps the title.
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
        # multiprocessing ends without them.
        atexit._run_exitfuncs()
