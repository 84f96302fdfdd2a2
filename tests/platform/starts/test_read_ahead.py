"""Test that the process that reads weights ahead exits with the startup."""

import fcntl
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from support import ROOT
from support.processes.background import HUNG_S, start_command, wait_until
from support.processes.commands import HANDLER, WORKER

READER = str(ROOT / "src" / "worker" / "engine" / "start" / "ahead" / "reader.py")


@pytest.fixture
def leased_model(demo_model: Path, tmp_path: Path) -> Iterator[Path]:
    """Create a model with locked weights, like on a disk that does not respond."""
    place = shutil.copytree(demo_model, tmp_path / "model")
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    with (place / "model.safetensors").open("r+b") as holder:
        fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield place
    signal.signal(signal.SIGIO, before)


def test_the_read_ahead_process_exits_with_the_worker(leased_model: Path, tmp_path: Path) -> None:
    environ = {**WORKER, "MODEL_NAME": str(leased_model), "ANSWER_FAILED_START": "0"}
    command = [*HANDLER, "--serve", "--port", "0"]
    with start_command(command, environ, tmp_path / "log") as worker:
        children: list[psutil.Process] = []

        def reads_ahead() -> bool:
            for child in psutil.Process(worker.process.pid).children():
                # Other children come and go.
                with suppress(psutil.Error):
                    if READER in child.cmdline():
                        children.append(child)
            return bool(children) or worker.process.poll() is not None

        wait_until(reads_ahead)
        (child,) = children
        worker.process.terminate()
        assert worker.wait_for_exit() != 0
        child.wait(HUNG_S)
