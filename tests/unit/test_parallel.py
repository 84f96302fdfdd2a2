"""Runs of tests in forks: every test has a result, and a failure of any fork fails the run."""

import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

CONFTEST = """
from pathlib import Path
from support import parallel

parallel.ROOT = Path(__file__).parent
parallel.forking.start_server = parallel.forking.keep_server = lambda: None

def pytest_configure(config):
    config.pluginmanager.register(parallel.ForkedRun(2))
"""
PASSES = "def test_one(): pass\ndef test_two(): pass\n"


def run(folder: Path, *files: str) -> tuple[int, str]:
    """Run files of tests in two forks; return the exit status and the output."""
    tests = folder / "tests" / "unit"
    tests.mkdir(parents=True)
    (folder / "conftest.py").write_text(CONFTEST)
    for number, content in enumerate(files):
        (tests / f"test_{number}.py").write_text(content)
    paths = f"pythonpath={ROOT}/src {ROOT}/tests"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", paths]
    ran = subprocess.run(
        [*command, f"--rootdir={folder}", tests], check=False, capture_output=True, text=True
    )
    return ran.returncode, ran.stdout


def test_each_test_is_reported_once(tmp_path: Path) -> None:
    fails = "def test_fails(): assert 'a' == 'b'\n"
    status, output = run(tmp_path, PASSES, fails, PASSES)
    assert status == 1
    assert "1 failed, 4 passed" in output
    assert "assert 'a' == 'b'" in output


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("import os\ndef test_dies(): os._exit(0)\n", "a process died in"),
        (
            "import atexit, os\ndef test_ends_badly(): atexit.register(os._exit, 3)\n",
            "forks exited with",
        ),
    ],
)
def test_a_fork_that_dies_or_exits_with_an_error_fails_the_run(
    tmp_path: Path, content: str, message: str
) -> None:
    status, output = run(tmp_path, PASSES, content)
    assert status != 0
    assert message in output


LOSES_A_TEST = """
from support import parallel

class Losing(parallel.FileQueue):
    def __iter__(self):
        return iter([*super().__iter__()][:-1])

parallel.FileQueue = Losing
"""


def test_a_test_without_a_result_fails_the_run(tmp_path: Path) -> None:
    status, output = run(tmp_path, LOSES_A_TEST + PASSES)
    assert status != 0
    assert "without a result: ['tests/unit/test_0.py::test_two']" in output
