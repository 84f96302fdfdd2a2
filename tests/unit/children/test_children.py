"""Child processes exit with their parent, however it exits; ``stop_descendants`` stops them all."""

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

from worker.children import script_command, with_parent

SOURCES = str(ROOT / "src")
# Like an import of a C extension: nothing else in the process runs meanwhile.
HANG = """
import ctypes, os
open({file!r}, "w").write(f"{{os.getpid()}} ")
ctypes.PyDLL(None).sleep(100_000)
"""

# Each starts one kind of child.
STARTS = {
    "worker.engine.run.grammar.process": """
import asyncio
from worker import children
from worker.engine.run.grammar import trial
children._SOURCES = os.environ["PYTHONPATH"]
async def start():
    await trial.GrammarTester(lambda: "{}", 1).start_process()
    await asyncio.sleep(100_000)
asyncio.run(start())
""",
    "worker.store.download": """
from pathlib import Path
from worker.store.fetcher import ModelFetcher, Places, Artifact
ModelFetcher([Artifact("org/model")], Places(Path("/nowhere")), os.environ).wait_for_locations()
""",
    "trainer": """
import asyncio
from worker.fine_tunes.child import COMMAND, TrainerProcess
async def start():
    await (await TrainerProcess.start(COMMAND, low_priority=False)).wait()
asyncio.run(start())
""",
    "worker.engine.seam.imports": """
from worker.engine.seam.imports import call_in_fork
call_in_fork(lambda: exec(os.environ["HANG"]), print)
""",
}


def wait_for_exit(pid: int) -> None:
    try:
        wait_until(lambda: process_state(pid) is None)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def command_with_parent(pid: int, *command: str | Path) -> list[str]:
    return script_command(with_parent.__file__, str(int(signal.SIGKILL)), str(pid), *command)


def run(words: list[str], **keys: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, timeout=HUNG_S, check=False, text=True, capture_output=True, **keys
    )


@pytest.mark.parametrize("module", STARTS)
def test_a_child_that_is_still_importing_ends_with_its_parent(module: str, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    hang = HANG.format(file=str(file))
    # The interpreter imports this module at startup, before the child's own code.
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nif {module!r} in sys.orig_argv:\n    exec({hang!r})\n"
    )
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{tmp_path}:{SOURCES}", "HANG": hang}
    command = [sys.executable, "-c", f"import os\n{STARTS[module]}"]
    with subprocess.Popen(command, env=environ) as parent:
        try:
            # The process id is complete once a space follows it.
            wait_until(lambda: file.exists() and file.read_text().endswith(" "))
        finally:
            parent.kill()
    wait_for_exit(int(file.read_text()))


def test_a_command_whose_parent_has_already_exited_does_not_run(tmp_path: Path) -> None:
    touch = ("touch", tmp_path / "ran")
    assert run(command_with_parent(os.getpid(), *touch)).returncode == 0
    (tmp_path / "ran").unlink()
    assert run(command_with_parent(1, *touch)).returncode == 1
    assert not (tmp_path / "ran").exists()


def test_a_command_gets_its_arguments_streams_and_environment() -> None:
    code = "import os, sys; print(sys.orig_argv, dict(os.environ), input()); sys.exit(3)"
    command = [sys.executable, "-I", "-c", code, "a b", ""]
    result = run(command_with_parent(os.getpid(), *command), env={"A": "b"}, input="read")
    environ = {"A": "b", "LC_CTYPE": "C.UTF-8"}
    assert (result.stdout, result.stderr) == (f"{command} {environ} read\n", "")
    assert result.returncode == 3


# A parent and its child, which also has the parent's output open.
IGNORING = """
import signal, sys, time
from worker.children import Child, StopMode
signal.signal(signal.SIGTERM, signal.SIG_IGN)
command = [sys.executable, "-c", "import time; time.sleep(100_000)"]
child = Child(command, StopMode.{ending})
print(child.pid, flush=True)
time.sleep(100_000)
"""


@pytest.mark.parametrize("ending", ["KILL", "TERMINATE"])
def test_a_child_ends_with_its_parent_even_if_the_parent_ignores_sigterm(ending: str) -> None:
    command = [sys.executable, "-c", IGNORING.format(ending=ending)]
    environ = {"PYTHONPATH": SOURCES}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        parent.kill()
        assert parent.stdout.read() == b""
    wait_for_exit(child)


# A process with every kind of child and a grandchild; each prints when it has begun.
FAMILY = r"""
import os, signal, subprocess, sys, time
from worker import children
from worker.children import Child, StopMode

def child(ending, *code, **options):
    words = [sys.executable, "-c", "\n".join(["import os, signal, subprocess, sys, time", *code])]
    started = Child(words, ending, stdout=subprocess.PIPE, **options)
    assert started.stdout.readline() == b"begun\n"
    return started

children.GRACE_S = 0.5
BEGUN = "print('begun', flush=True)"
SLEEP = "time.sleep(100_000)"
IGNORE = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
TIDY = "signal.signal(signal.SIGTERM, lambda *_: (print('tidy', flush=True), os._exit(0)))"
nested = f"subprocess.run([sys.executable, '-c', {f'import time; {BEGUN}; {SLEEP}'!r}])"
source, sink = os.pipe()
killed = child(StopMode.KILL, IGNORE, nested)
graceful = child(StopMode.TERMINATE, TIDY, BEGUN, SLEEP)
stubborn = child(StopMode.TERMINATE, IGNORE, BEGUN, SLEEP)
spared = child(StopMode.KILL, BEGUN, SLEEP)
reads = (BEGUN, f"os.read({source}, 1)", "print('last', flush=True)")
reader = child(StopMode.WAIT_FOR_WRITERS, *reads, pass_fds=[source])
core = os.fork()
if not core:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(100_000)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    reader.send_signal(number)
children.stop_descendants(spared_children=[spared])
print([child.wait() for child in (killed, graceful, stubborn)], os.waitpid(core, 0)[1])
print(killed.stdout.read(), graceful.stdout.read(), spared.poll(), reader.poll())
os.close(sink)
print(reader.stdout.read(), reader.wait())
spared.stop()
print(spared.returncode)
"""


def test_stop_descendants_ends_all_children_but_spared_ones_and_readers_of_output() -> None:
    result = run([sys.executable, "-c", FAMILY], env={"PYTHONPATH": SOURCES})
    # The grandchild shares the killed child's output, which ends only when both have exited.
    assert result.stdout.splitlines() == [
        "[-9, 0, -9] 9",
        r"b'' b'tidy\n' None None",
        r"b'last\n' 0",
        "-9",
    ], result


# A parent, its fork, and a fork of that fork, which doesn't end with its own parent.
FORKS = """
import os, time
from worker.children import end_forks_with_parent
with end_forks_with_parent():
    middle = os.fork()
    last = middle or os.fork()
if not last:
    print(os.getppid(), os.getpid(), flush=True)
time.sleep(100_000)
"""


def test_a_fork_ends_with_its_parent_but_a_fork_of_the_fork_does_not() -> None:
    command, environ = [sys.executable, "-c", FORKS], {"PYTHONPATH": SOURCES}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        middle, last = map(int, parent.stdout.readline().split())
        parent.kill()
    try:
        wait_until(lambda: process_state(middle) is None)
        assert process_state(last) is not None
    finally:
        os.kill(last, signal.SIGKILL)


# A thread that ends before its fork does.
FORKING_THREAD = """
import os, threading, time
from worker.children import end_forks_with_parent

def run():
    with end_forks_with_parent():
        if not os.fork():
            while not os.path.exists("ended"):
                time.sleep(0.01)
            os._exit(3)

thread = threading.Thread(target=run)
thread.start()
thread.join()
open("ended", "w").close()
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_fork_outlives_the_thread_that_created_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKING_THREAD]
    assert run(command, env={"PYTHONPATH": SOURCES}, cwd=tmp_path).stdout == "3\n"


FORKING = """
import os
from worker.children import run_in_fork
statuses = [os.waitpid(run_in_fork(run), 0)[1] for run in (lambda: None, lambda: 1 / 0)]
print(*map(os.waitstatus_to_exitcode, statuses))
"""


def test_a_fork_exits_when_its_function_returns_or_raises() -> None:
    result = run([sys.executable, "-c", FORKING], env={"PYTHONPATH": SOURCES})
    assert result.stdout == "0 1\n"
    assert result.stderr.endswith("ZeroDivisionError: division by zero\n")
