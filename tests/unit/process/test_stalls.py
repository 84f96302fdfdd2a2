"""What counts as a movement of a start."""

import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support.processes.background import wait_until

from worker.engine.start.ahead import ReadAhead
from worker.process.stalls import (
    BYTES_OF_FAULT,
    LATE_S,
    LONGEST_LOOK_S,
    Stillness,
    bytes_moved,
    processes_of,
    used,
    watch,
)

PATIENCE_S = 100.0
# More than any process has.
NOBODY = 1 << 22
ENVIRON = {**os.environ, "PYTHONPATH": ":".join(sys.path)}

# Hangs where nobody reads what is printed any more.
UNREAD = """
import os, time
from worker.process import stalls
source, sink = os.pipe()
os.close(source)
os.dup2(sink, 2)
stalls.begin({"START_STALL_S": "0.5"})
time.sleep(600)
"""
# A worker that is killed while it is watched. A core that it has forked lives on.
KILLED = """
import os, signal, time
from worker.process import stalls
stalls.begin({"START_STALL_S": "60.0"})
if os.fork():
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
os.close(2)
time.sleep(600)
"""
HANGED_UP = """
import os, signal
from worker.process import stalls
stalls.begin({"START_STALL_S": "100"})
os.kill(os.getpid(), signal.SIGHUP)
stalls.end()
os.kill(os.getpid(), signal.SIGHUP)
"""


def first_stall(used: Callable[[float], tuple[float, float]], step_s: float = 5.0) -> float | None:
    """Return when nothing has moved for too long, of figures that grow with time."""
    stillness, before = Stillness(0.0), (0.0, 0)
    for look in range(200):
        now = look * step_s
        processor_s, moved = used(now)
        figures = processor_s - before[0], int(moved) - before[1]
        if stillness.look(now, b"", *figures) >= PATIENCE_S:
            return now
        before = processor_s, int(moved)
    return None


@pytest.mark.parametrize(
    ("used", "stalls_at"),
    [
        (lambda _: (0, 0), PATIENCE_S),
        # What processes do that wait.
        (lambda now: (0.02 * now, 8 * now), PATIENCE_S),
        (lambda now: (0.1 * now, 0), None),
        # A line of the log now and then.
        (lambda now: (0, now // 4 * 100), None),
        # It moved until then.
        (lambda now: (min(now, 50), 0), 50 + PATIENCE_S),
        (lambda now: (0, 1e9 * min(now, 50)), 50 + PATIENCE_S),
    ],
)
def test_a_start_stands_still_without_processor_time_and_bytes(
    used: Callable[[float], tuple[float, float]], stalls_at: float | None
) -> None:
    assert first_stall(used) == stalls_at


def test_a_machine_that_was_frozen_is_given_its_time_again() -> None:
    assert first_stall(lambda _: (0, 0), LONGEST_LOOK_S + LATE_S + 1) is None


def test_a_new_phase_is_a_movement() -> None:
    stillness = Stillness(0.0)
    for now in range(0, 1000, 5):
        assert stillness.look(now, b"%d" % (now // 50), 0, 0) < PATIENCE_S


@pytest.fixture
def start_process() -> Iterator[Callable[..., psutil.Process]]:
    started = []

    def start(code: str, *flags: str) -> psutil.Process:
        command = [sys.executable, *flags, "-c", code]
        started.append(subprocess.Popen(command, start_new_session=True))
        return psutil.Process(started[-1].pid)

    yield start
    for process in started:
        # Its children, too.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize(
    ("code", "figure"),
    [
        ("while True: pass", 0),
        (
            "import os; null = os.open('/dev/null', os.O_WRONLY)\nwhile True: os.write(null, b'x')",
            1,
        ),
    ],
)
def test_what_computes_uses_a_processor_and_what_writes_moves_bytes(
    start_process: Callable[..., psutil.Process], code: str, figure: int
) -> None:
    processes, seen = [start_process(code)], dict[psutil.Process, tuple[float, int]]()
    used(processes, seen)
    wait_until(lambda: used(processes, seen)[figure] > 0)


def test_children_are_part_of_a_start_and_helpers_are_not(
    start_process: Callable[..., psutil.Process],
) -> None:
    child = "import subprocess, sys, time; {}; time.sleep(1e6)"
    spawn = "subprocess.Popen([sys.executable, {}'-c', 'import time; time.sleep(1e6)'])"
    parent = start_process(child.format(spawn.format("'-I', '-S', ") + ";" + spawn.format("")))
    waits = "import time; time.sleep(1e6)"

    def found() -> list[bool]:
        return [waits in process.cmdline() for process in processes_of(parent)]

    # Until both have begun: a fork looks like its parent.
    wait_until(lambda: len(parent.children()) == 2 and found() == [False, True])


def test_what_is_read_from_a_disk_and_of_a_mapped_file_counts(tmp_path: Path) -> None:
    (tmp_path / "io").write_text(
        "rchar: 10\nwchar: 200\nsyscr: 5\nsyscw: 6\nread_bytes: 4096\nwrite_bytes: 7\n"
    )
    (tmp_path / "stat").write_text("7 (a) b) S 1 7 7 0 -1 4194304 900 800 3 0 5 6 0 0 20 0 1\n")
    assert bytes_moved(tmp_path) == 10 + 200 + 4096 + 3 * BYTES_OF_FAULT


def test_a_start_is_left_alone_where_its_bytes_are_not_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch(NOBODY, mmap.mmap(-1, mmap.PAGESIZE), PATIENCE_S)
    assert "a start that hangs is not noticed here" in caplog.text


def test_what_reads_ahead_is_part_of_a_start(tmp_path: Path) -> None:
    read_ahead = ReadAhead([tmp_path], 1 << 20)
    os.kill(read_ahead.pid, signal.SIGSTOP)
    found = {process.pid for process in processes_of(psutil.Process())}
    os.kill(read_ahead.pid, signal.SIGCONT)
    read_ahead.end()
    assert read_ahead.pid in found


def test_a_worker_that_is_killed_leaves_a_watcher_that_ends_without_a_word() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED],
        env=ENVIRON,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as worker:
        assert worker.wait() == -signal.SIGKILL
        assert worker.stderr
        assert worker.stderr.read() == b""
        os.killpg(worker.pid, signal.SIGKILL)


def test_a_start_under_nohup_outlives_its_terminal() -> None:
    command = ["nohup", sys.executable, "-c", HANGED_UP]
    subprocess.run(command, env=ENVIRON, stdin=subprocess.DEVNULL, check=True)


def test_a_start_that_hangs_is_ended_also_where_nobody_reads_why() -> None:
    ran = subprocess.run([sys.executable, "-c", UNREAD], env=ENVIRON, check=False)
    assert ran.returncode == 1
