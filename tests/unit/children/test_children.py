"""Children end with their parent, however that ends and whatever they do; or all at once."""

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

from worker.children import script, with_parent

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
from worker import children
from worker.engine.run.grammar import trial
children._SOURCES = os.environ["PYTHONPATH"]
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
    "trainer": """
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


def with_parent_of(pid: int, *command: str | Path) -> list[str]:
    return script(with_parent.__file__, str(int(signal.SIGKILL)), str(pid), *command)


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
    touch = ("touch", tmp_path / "ran")
    assert ran(with_parent_of(os.getpid(), *touch)).returncode == 0
    (tmp_path / "ran").unlink()
    assert ran(with_parent_of(1, *touch)).returncode == 1
    assert not (tmp_path / "ran").exists()


def test_a_command_has_its_own_words_streams_and_environment() -> None:
    code = "import os, sys; print(sys.orig_argv, dict(os.environ), input()); sys.exit(3)"
    command = [sys.executable, "-I", "-c", code, "a b", ""]
    ended = ran(with_parent_of(os.getpid(), *command), env={"A": "b"}, input="read")
    environ = {"A": "b", "LC_CTYPE": "C.UTF-8"}
    assert (ended.stdout, ended.stderr) == (f"{command} {environ} read\n", "")
    assert ended.returncode == 3


# A parent and its child, which has the parent's output open, too.
IGNORING = """
import signal, sys, time
from worker.children import Child, Ending
signal.signal(signal.SIGTERM, signal.SIG_IGN)
command = [sys.executable, "-c", "import time; time.sleep(100_000)"]
child = Child(command, Ending.{ending})
print(child.pid, flush=True)
time.sleep(100_000)
"""


@pytest.mark.parametrize("ending", ["KILLED", "ASKED"])
def test_a_signal_that_the_parent_ignores_ends_it_too(ending: str) -> None:
    command = [sys.executable, "-c", IGNORING.format(ending=ending)]
    environ = {"PYTHONPATH": SOURCES}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        parent.kill()
        assert parent.stdout.read() == b""
    wait_for_end(child)


# A process with every kind of child, and theirs; all say when they have begun.
FAMILY = r"""
import os, signal, subprocess, sys, time
from worker import children
from worker.children import Child, Ending

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
killed = child(Ending.KILLED, IGNORE, nested)
asked = child(Ending.ASKED, TIDY, BEGUN, SLEEP)
stubborn = child(Ending.ASKED, IGNORE, BEGUN, SLEEP)
spared = child(Ending.KILLED, BEGUN, SLEEP)
reads = (BEGUN, f"os.read({source}, 1)", "print('last', flush=True)")
reader = child(Ending.AFTER_WRITERS, *reads, pass_fds=[source])
core = os.fork()
if not core:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(100_000)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    reader.send_signal(number)
children.end_all(spare=[spared])
print([child.wait() for child in (killed, asked, stubborn)], os.waitpid(core, 0)[1])
print(killed.stdout.read(), asked.stdout.read(), spared.poll(), reader.poll())
os.close(sink)
print(reader.stdout.read(), reader.wait())
spared.end()
print(spared.returncode)
"""


def test_all_children_end_at_once_but_what_tidies_up_or_reads_what_is_printed() -> None:
    ended = ran([sys.executable, "-c", FAMILY], env={"PYTHONPATH": SOURCES})
    # What the killed one has started has its output, too: its end is that of both.
    assert ended.stdout.splitlines() == [
        "[-9, 0, -9] 9",
        r"b'' b'tidy\n' None None",
        r"b'last\n' 0",
        "-9",
    ], ended


# A parent, a fork of it, and a fork of that, which is not asked to end with it.
FORKS = """
import os, time
from worker.children import forks_end_with_this
with forks_end_with_this():
    middle = os.fork()
    last = middle or os.fork()
if not last:
    print(os.getppid(), os.getpid(), flush=True)
time.sleep(100_000)
"""


def test_forks_that_others_make_end_with_this_process_and_not_theirs() -> None:
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


# A thread that ends, whose fork lives on.
FORKING_THREAD = """
import os, threading, time
from worker.children import forks_end_with_this

def run():
    with forks_end_with_this():
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


def test_a_fork_of_a_thread_does_not_end_with_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKING_THREAD]
    assert ran(command, env={"PYTHONPATH": SOURCES}, cwd=tmp_path).stdout == "3\n"


FORKING = """
import os
from worker.children import fork
ended = [os.waitpid(fork(run), 0)[1] for run in (lambda: None, lambda: 1 / 0)]
print(*map(os.waitstatus_to_exitcode, ended))
"""


def test_a_fork_ends_when_its_function_returns_or_fails_and_says_why() -> None:
    ended = ran([sys.executable, "-c", FORKING], env={"PYTHONPATH": SOURCES})
    assert ended.stdout == "0 1\n"
    assert ended.stderr.endswith("ZeroDivisionError: division by zero\n")
