"""Children that end with their parent, however that ends and whatever they do."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support import ROOT
from support.processes.background import HUNG_S, wait_until

from worker import with_parent

SOURCES = str(ROOT / "src")
# As an import of C: nothing else in the process runs.
HANG = """
import ctypes, os
open({told!r}, "w").write(f"{{os.getpid()}} ")
ctypes.PyDLL(None).sleep(100_000)
"""
SLEEP = "import time; time.sleep(100_000)"

# Each starts one kind of child.
STARTS = {
    "worker.engine.grammar.process": """
import asyncio
from worker.engine.grammar import trial
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
    "worker.engine.inspection": """
from worker.engine.inspection import forked
forked(lambda: exec(os.environ["HANG"]), print)
""",
}


def runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("module", STARTS)
def test_a_child_that_still_imports_ends_with_its_parent(module: str, tmp_path: Path) -> None:
    told = tmp_path / "pid"
    hang = HANG.format(told=str(told))
    # Imported as an interpreter begins, before the child's own code.
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nif {module!r} in sys.orig_argv:\n    exec({hang!r})\n"
    )
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{tmp_path}:{SOURCES}", "HANG": hang}
    command = [sys.executable, "-c", f"import os\n{STARTS[module]}"]
    with subprocess.Popen(command, env=environ) as parent:
        try:
            # With a space at its end it is complete.
            wait_until(lambda: told.exists() and told.read_text().endswith(" "))
        finally:
            parent.kill()
    child = int(told.read_text())
    try:
        wait_until(lambda: not runs(child))
    finally:
        if runs(child):
            os.kill(child, 9)


def test_a_command_whose_parent_has_ended_already_does_not_run(tmp_path: Path) -> None:
    words = with_parent.command("touch", tmp_path / "ran")
    assert subprocess.run(words, timeout=HUNG_S, check=False).returncode == 0
    (tmp_path / "ran").unlink()
    another = [word if word != str(os.getpid()) else "1" for word in words]
    assert subprocess.run(another, timeout=HUNG_S, check=False).returncode == 1
    assert not (tmp_path / "ran").exists()


def test_a_command_has_its_own_words_streams_and_environment() -> None:
    script = "import os, sys; print(sys.orig_argv, dict(os.environ), input()); sys.exit(3)"
    command = [sys.executable, "-I", "-c", script, "a b", ""]
    ran = subprocess.run(
        with_parent.command(*command),
        env={"A": "b"},
        input="read",
        capture_output=True,
        text=True,
        timeout=HUNG_S,
        check=False,
    )
    environ = {"A": "b", "LC_CTYPE": "C.UTF-8"}
    assert (ran.stdout, ran.stderr) == (f"{command} {environ} read\n", "")
    assert ran.returncode == 3


def test_a_signal_that_the_parent_ignores_ends_it_too() -> None:
    script = (
        "import signal, subprocess, sys\n"
        "from worker import with_parent\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"command = with_parent.command(sys.executable, '-c', {SLEEP!r})\n"
        "print(subprocess.Popen(command).pid, flush=True)\n"
        f"{SLEEP}\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], env={"PYTHONPATH": SOURCES}, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        parent.kill()
        # The child has it open, too.
        assert parent.stdout.read() == b""
    wait_until(lambda: not runs(child))
