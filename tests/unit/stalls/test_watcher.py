"""What counts as a movement of a start."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from support.processes.background import wait_until

from worker.stalls.watcher import LATE_S, LONGEST_LOOK_S, Process, Usage, Window, runs, tree

PATIENCE_S = 100.0


def first_stall(used: Callable[[float], tuple[float, float]], step_s: float = 5.0) -> float | None:
    """Return when a window stands still, of processor seconds and bytes that grow with time."""
    window = Window(PATIENCE_S)
    for look in range(200):
        now = look * step_s
        processor_s, moved = used(now)
        if window.stands_still(now, processor_s, int(moved)):
            return now
    return None


@pytest.mark.parametrize(
    ("used", "stalls_at"),
    [
        (lambda _: (0, 0), PATIENCE_S),
        # What processes do that wait.
        (lambda now: (0.005 * now, 8 * now), PATIENCE_S),
        (lambda now: (0.02 * now, 0), None),
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
    window = Window(PATIENCE_S)
    for now in range(0, 1000, 5):
        if now % 50 == 0:
            window.moved()
        assert not window.stands_still(now, 0, 0)


@pytest.fixture
def running() -> Iterator[Callable[..., Process]]:
    started = []

    def start(code: str, *flags: str) -> Process:
        started.append(subprocess.Popen([sys.executable, *flags, "-c", code]))
        return Process.of(started[-1].pid)

    yield start
    for process in started:
        process.kill()
        process.wait()


def grows(process: Process, figure: str) -> None:
    """Wait until a process, looked at again and again, has used more."""
    usage = Usage()
    usage.look([process])
    before = getattr(usage, figure)

    def more() -> bool:
        usage.look([Process.of(process.pid)])
        return bool(getattr(usage, figure) > before)

    wait_until(more)


def test_what_computes_uses_a_processor(running: Callable[..., Process]) -> None:
    grows(running("while True: pass"), "processor_s")


def test_what_reads_and_writes_moves_bytes(running: Callable[..., Process]) -> None:
    code = "import os; null = os.open('/dev/null', os.O_WRONLY)\nwhile True: os.write(null, b'x')"
    grows(running(code), "bytes_moved")


def test_children_are_part_of_a_start_and_helpers_are_not(
    running: Callable[..., Process],
) -> None:
    child = "import subprocess, sys, time; {}; time.sleep(1e6)"
    spawn = "subprocess.Popen([sys.executable, {}'-c', 'import time; time.sleep(1e6)'])"
    parent = running(child.format(spawn.format("'-I', '-S', ") + ";" + spawn.format("")))
    waits = b"import time; time.sleep(1e6)"
    # Until the second has begun: a fork looks like its parent.
    wait_until(lambda: [waits in process.command for process in tree(parent.pid)] == [False, True])
    assert all(map(runs, tree(parent.pid)))


def test_a_process_that_has_ended_does_not_run(running: Callable[..., Process]) -> None:
    process = running("")
    wait_until(lambda: not runs(process))
