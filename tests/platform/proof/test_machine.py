"""`make prove` with the smallest model, on a CPU."""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT
from support.processes.background import pids_with_variable, start_command, wait_until
from support.processes.commands import HOME

from proof.machine.plan import PARTS, Plan
from proof.machine.result import FILE_FORMAT, ROWS

pytestmark = pytest.mark.slow

COMMAND = (sys.executable, "-m", "proof.machine", "--size", "tiny", "--output")
# An inherited variable, by which a test finds all processes.
VARIABLE = "STARTED_BY_TEST_PROOF"
# Figures that vLLM's server does not have, or not on its way.
WORKER_ONLY = ("posts", "retryable", "recovered_s", "embedder", "batch", "fine-tune")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return an empty folder, whose path is short enough for sockets of vLLM."""
    with tempfile.TemporaryDirectory(prefix="p-") as path:
        yield Path(path)


def environ(folder: Path) -> dict[str, str]:
    for name in ("home", "tmp"):
        (folder / name).mkdir()
    return {
        **HOME,
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "PYTHONPATH": str(ROOT / "src"),
        VARIABLE: str(folder),
        # The settings of a pod, which are not those of the measurement.
        "MAX_MODEL_LEN": "5",
        "RUNPOD_ENDPOINT_ID": "pod",
    }


def assert_nothing_is_left(folder: Path) -> None:
    assert pids_with_variable(VARIABLE, str(folder)) == []
    assert list((folder / "tmp").iterdir()) == []
    assert list((folder / "home").iterdir()) == []


@pytest.mark.timeout(3600)
def test_every_step_succeeds_and_every_row_of_the_page_has_figures(folder: Path) -> None:
    result = subprocess.run(
        [*COMMAND, folder / "output"],
        env=environ(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    proof = FILE_FORMAT.validate_json((folder / "output" / "result.json").read_bytes())
    assert proof.failures == [], result.stdout
    sides = proof.sides()
    for row in ROWS:
        assert sides["worker"][row.load][row.figure] > 0, row
        if not {row.load, row.figure} & set(WORKER_ONLY):
            assert sides["server"][row.load][row.figure] > 0, row
    # All callers could try again.
    assert sides["worker"]["core killed"]["retryable"] == 16
    text = (folder / "output" / "README.md").read_text()
    assert "All steps succeeded." in text
    assert [row.title for row in ROWS if row.title not in text] == []
    assert_nothing_is_left(folder)


def test_the_announcement_has_all_parts(folder: Path) -> None:
    with start_command((*COMMAND, "output"), environ(folder), folder / "log") as proof:
        proof.wait_for_output("[ 1/")
        proof.process.terminate()
        assert proof.wait_for_exit() == 130
    printed = (folder / "log").read_text()
    assert all(f"- {name}: {part.text}" in printed for name, part in PARTS.items())
    steps = [each for part in PARTS.values() for each in part.sessions(Plan(folder, False))]
    assert f"[ 1/{sum(1 + len(session.steps) for session in steps)}]" in printed


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("step", [1, 2, 6, 12])
def test_ctrl_c_leaves_nothing(folder: Path, step: int) -> None:
    command = (*COMMAND, folder / "output", "--only", "starts")
    with start_command(command, environ(folder), folder / "log") as proof:
        for number in range(1, step + 1):  # each may take as long as a command may hang
            proof.wait_for_output(f"[{number:2}/")
        # In the middle of a step, which starts processes and writes files.
        time.sleep(1)
        proof.process.send_signal(signal.SIGINT)
        # A second one must not interrupt the cleanup.
        proof.process.send_signal(signal.SIGINT)
        assert proof.wait_for_exit() == 130
    wait_until(lambda: not pids_with_variable(VARIABLE, str(folder)))
    assert_nothing_is_left(folder)
    assert not (folder / "output").exists()
    assert "Traceback" not in (folder / "log").read_text()


def test_a_closed_terminal_leaves_nothing(folder: Path) -> None:
    command = (*COMMAND, folder / "output", "--only", "starts")
    with subprocess.Popen(
        command, env=environ(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as proof:
        assert proof.stdout is not None
        printed = b""
        while b"[ 1/" not in printed:
            printed += proof.stdout.read(1)
        proof.stdout.close()
        time.sleep(1)
        proof.send_signal(signal.SIGHUP)
        # Python exits with 120 if it can't write its last output.
        assert proof.wait() in (120, 130)
    wait_until(lambda: not pids_with_variable(VARIABLE, str(folder)))
    assert_nothing_is_left(folder)
    assert not (folder / "output").exists()
