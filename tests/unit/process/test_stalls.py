"""Activity that counts as progress of a start, and the watch for stalls."""

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
    BYTES_PER_FAULT,
    LATE_CHECK_S,
    MAX_CHECK_INTERVAL_S,
    StallDetector,
    count_io_bytes,
    measure_cpu_and_io,
    startup_processes,
    watch_startup,
)

PATIENCE_S = 100.0
# Larger than any process id.
UNUSED_PID = 1 << 22
ENVIRON = {**os.environ, "PYTHONPATH": ":".join(sys.path)}

# Hangs while its stderr has no reader.
UNREAD = """
import os, time
from worker.process import stalls
source, sink = os.pipe()
os.close(source)
os.dup2(sink, 2)
stalls.start_watcher({"START_STALL_S": "0.5"})
time.sleep(600)
"""
# A worker that is killed while it is watched. The core that it forked lives on.
KILLED = """
import os, signal, time
from worker.process import stalls
stalls.start_watcher({"START_STALL_S": "60.0"})
if os.fork():
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
os.close(2)
time.sleep(600)
"""
HUNG_UP = """
import os, signal
from worker.process import stalls
stalls.start_watcher({"START_STALL_S": "100"})
os.kill(os.getpid(), signal.SIGHUP)
stalls.stop_watcher()
os.kill(os.getpid(), signal.SIGHUP)
"""


def first_stall(usage: Callable[[float], tuple[float, float]], step_s: float = 5.0) -> float | None:
    """Return the time at which a start with this usage over time stalls; None if it doesn't."""
    detector, before = StallDetector(0.0), (0.0, 0)
    for check in range(200):
        now = check * step_s
        processor_s, moved = usage(now)
        figures = processor_s - before[0], int(moved) - before[1]
        if detector.update_idle_seconds(now, b"", *figures) >= PATIENCE_S:
            return now
        before = processor_s, int(moved)
    return None


@pytest.mark.parametrize(
    ("usage", "stalls_at"),
    [
        (lambda _: (0, 0), PATIENCE_S),
        # Usage of processes that wait.
        (lambda now: (0.02 * now, 8 * now), PATIENCE_S),
        (lambda now: (0.1 * now, 0), None),
        # An occasional line in the log.
        (lambda now: (0, now // 4 * 100), None),
        # Progress only in the first 50 seconds.
        (lambda now: (min(now, 50), 0), 50 + PATIENCE_S),
        (lambda now: (0, 1e9 * min(now, 50)), 50 + PATIENCE_S),
    ],
)
def test_a_start_without_processor_time_and_bytes_is_stalled(
    usage: Callable[[float], tuple[float, float]], stalls_at: float | None
) -> None:
    assert first_stall(usage) == stalls_at


def test_a_machine_that_was_frozen_gets_the_full_time_again() -> None:
    assert first_stall(lambda _: (0, 0), MAX_CHECK_INTERVAL_S + LATE_CHECK_S + 1) is None


def test_a_new_phase_is_progress() -> None:
    detector = StallDetector(0.0)
    for now in range(0, 1000, 5):
        assert detector.update_idle_seconds(now, b"%d" % (now // 50), 0, 0) < PATIENCE_S


@pytest.fixture
def run_code() -> Iterator[Callable[..., psutil.Process]]:
    started = []

    def start(code: str, *flags: str) -> psutil.Process:
        command = [sys.executable, *flags, "-c", code]
        started.append(subprocess.Popen(command, start_new_session=True))
        return psutil.Process(started[-1].pid)

    yield start
    for process in started:
        # Kill its children, too.
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
def test_computing_uses_processor_time_and_writing_moves_bytes(
    run_code: Callable[..., psutil.Process], code: str, figure: int
) -> None:
    processes, seen = [run_code(code)], dict[psutil.Process, tuple[float, int]]()
    measure_cpu_and_io(processes, seen)
    wait_until(lambda: measure_cpu_and_io(processes, seen)[figure] > 0)


def test_children_are_part_of_a_start_and_helpers_are_not(
    run_code: Callable[..., psutil.Process],
) -> None:
    child = "import subprocess, sys, time; {}; time.sleep(1e6)"
    spawn = "subprocess.Popen([sys.executable, {}'-c', 'import time; time.sleep(1e6)'])"
    parent = run_code(child.format(spawn.format("'-I', '-S', ") + ";" + spawn.format("")))
    waits = "import time; time.sleep(1e6)"

    def match_processes() -> list[bool]:
        return [waits in process.cmdline() for process in startup_processes(parent)]

    # Wait until both have begun, because a fork looks like its parent.
    wait_until(lambda: len(parent.children()) == 2 and match_processes() == [False, True])


def test_bytes_read_from_a_disk_or_a_mapped_file_count(tmp_path: Path) -> None:
    (tmp_path / "io").write_text(
        "rchar: 10\nwchar: 200\nsyscr: 5\nsyscw: 6\nread_bytes: 4096\nwrite_bytes: 7\n"
    )
    (tmp_path / "stat").write_text("7 (a) b) S 1 7 7 0 -1 4194304 900 800 3 0 5 6 0 0 20 0 1\n")
    assert count_io_bytes(tmp_path) == 10 + 200 + 4096 + 3 * BYTES_PER_FAULT


def test_a_start_is_not_watched_if_its_bytes_cannot_be_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch_startup(UNUSED_PID, mmap.mmap(-1, mmap.PAGESIZE), PATIENCE_S)
    assert "a start that hangs can't be detected" in caplog.text


def test_the_read_ahead_process_is_part_of_a_start(tmp_path: Path) -> None:
    read_ahead = ReadAhead([tmp_path], 1 << 20)
    os.kill(read_ahead.pid, signal.SIGSTOP)
    pids = {process.pid for process in startup_processes(psutil.Process())}
    os.kill(read_ahead.pid, signal.SIGCONT)
    read_ahead.stop()
    assert read_ahead.pid in pids


def test_the_watcher_of_a_killed_worker_exits_silently() -> None:
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
    command = ["nohup", sys.executable, "-c", HUNG_UP]
    subprocess.run(command, env=ENVIRON, stdin=subprocess.DEVNULL, check=True)


def test_a_hanging_start_is_ended_even_if_its_stderr_has_no_reader() -> None:
    result = subprocess.run([sys.executable, "-c", UNREAD], env=ENVIRON, check=False)
    assert result.returncode == 1
