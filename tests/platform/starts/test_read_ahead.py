"""The child that reads weights ahead, of a real start: gone when the start has ended."""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[3]
READER = str(ROOT / "src" / "worker" / "start" / "reader.py")
PATIENCE_S = 180


@pytest.fixture
def model(demo_model: Path, tmp_path: Path) -> Iterator[Path]:
    """A model whose weights others wait for, as on a disk that does not answer."""
    place = shutil.copytree(demo_model, tmp_path / "model")
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    with (place / "model.safetensors").open("r+b") as holder:
        fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield place
    signal.signal(signal.SIGIO, before)


def child_of(worker: "subprocess.Popen[bytes]") -> psutil.Process:
    """Wait until the worker has the child; return it."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and worker.poll() is None:
        for child in psutil.Process(worker.pid).children():
            # Others come and go.
            with contextlib.suppress(psutil.Error):
                if READER in child.cmdline():
                    return child
        time.sleep(0.01)
    pytest.fail("nothing reads ahead")


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, None], ids=str)
def test_the_child_is_gone_when_the_start_has_ended(
    model: Path, end: signal.Signals | None
) -> None:
    environ = {"MODEL_NAME": str(model), "ANSWER_FAILED_START": "0"}
    if end is None:
        environ["SEED"] = "wrong"
    command = [sys.executable, str(ROOT / "src" / "handler.py"), "--serve", "--port", "0"]
    with subprocess.Popen(command, env={**os.environ, **environ}) as worker:
        child = child_of(worker)
        if end:
            worker.send_signal(end)
        assert worker.wait(PATIENCE_S) != 0
    child.wait(PATIENCE_S)
    assert not child.is_running()
