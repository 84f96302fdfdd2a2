"""Children that end with their parent, however that ends and whatever they do."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.processes.background import HUNG_S, wait_until
from support.processes.fleets import process_state

from worker import with_parent

SOURCES = str(ROOT / "src")
# As an import of C: nothing else in the process runs.
HANG = """
import ctypes, os
open({file!r}, "w").write(f"{{os.getpid()}} ")
ctypes.PyDLL(None).sleep(100_000)
"""

# Each starts one kind of child.
STARTS = {
    "worker.engine.run.grammar.process": """
import asyncio
from worker.engine.run.grammar import trial
trial._SOURCES = os.environ["PYTHONPATH"]
async def start():
    await trial.Trial(lambda: "{}", 1).start()
    await asyncio.sleep(100_000)
asyncio.run(start())
""",
    "worker.store.download": """
from pathlib import Path
from worker.store.fetching import Fetching, Places, Wanted
Fetching([Wanted("org/model")], Places(Path("/nowhere")), os.environ).result()
""",
    "worker.trainer.checker": """
from pathlib import Path
from worker.trainer.check import Spec, check
check(Spec.model_construct(), Path("/nowhere"))
""",
    "worker.trainer": """
import asyncio
from worker.fine_tunes.child import COMMAND, Child
async def start():
    await (await Child.started(COMMAND, nice=False)).ended()
asyncio.run(start())
""",
    "worker.engine.seam.inspection": """
from worker.engine.seam.inspection import forked
forked(lambda: exec(os.environ["HANG"]), print)
""",
}


def wait_for_end(pid: int) -> None:
    try:
        wait_until(lambda: process_state(pid) is None)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def ran(words: list[str], **keys: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, timeout=HUNG_S, check=False, text=True, capture_output=True, **keys
    )


@pytest.mark.parametrize("module", STARTS)
def test_a_child_that_still_imports_ends_with_its_parent(module: str, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    hang = HANG.format(file=str(file))
    # Imported as an interpreter begins, before the child's own code.
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nif {module!r} in sys.orig_argv:\n    exec({hang!r})\n"
    )
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{tmp_path}:{SOURCES}", "HANG": hang}
    command = [sys.executable, "-c", f"import os\n{STARTS[module]}"]
    with subprocess.Popen(command, env=environ) as parent:
        try:
            # With a space at its end it is complete.
            wait_until(lambda: file.exists() and file.read_text().endswith(" "))
        finally:
            parent.kill()
    wait_for_end(int(file.read_text()))


def test_a_command_whose_parent_has_ended_already_does_not_run(tmp_path: Path) -> None:
    words = with_parent.command("touch", tmp_path / "ran")
    assert ran(words).returncode == 0
    (tmp_path / "ran").unlink()
    assert ran([word if word != str(os.getpid()) else "1" for word in words]).returncode == 1
    assert not (tmp_path / "ran").exists()


def test_a_command_has_its_own_words_streams_and_environment() -> None:
    script = "import os, sys; print(sys.orig_argv, dict(os.environ), input()); sys.exit(3)"
    command = [sys.executable, "-I", "-c", script, "a b", ""]
    ended = ran(with_parent.command(*command), env={"A": "b"}, input="read")
    environ = {"A": "b", "LC_CTYPE": "C.UTF-8"}
    assert (ended.stdout, ended.stderr) == (f"{command} {environ} read\n", "")
    assert ended.returncode == 3


# A parent and its child, which has the parent's output open, too.
IGNORING = """
import signal, subprocess, sys, time
from worker import with_parent
signal.signal(signal.SIGTERM, signal.SIG_IGN)
command = with_parent.command(sys.executable, "-c", "import time; time.sleep(100_000)")
print(subprocess.Popen(command).pid, flush=True)
time.sleep(100_000)
"""


def test_a_signal_that_the_parent_ignores_ends_it_too() -> None:
    command, environ = [sys.executable, "-c", IGNORING], {"PYTHONPATH": SOURCES}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        parent.kill()
        assert parent.stdout.read() == b""
    wait_for_end(child)
