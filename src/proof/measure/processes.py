"""Processes of a measurement: they end with it, and their CPU time and memory are known."""

import asyncio
import os
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil

# The folder that contains src: the repository, or the root of the image.
ROOT = Path(__file__).parents[3]
# In the command of a process that removes shared memory when its users have exited.
TRACKER = "multiprocessing.resource_tracker"
# Maximum seconds until a new process has a command, of trackers after the end of the others, and of
# all processes, some of which may wait for a slow disk.
COMMAND_S, TRACKERS_S, KILL_S = 1.0, 10.0, 300.0
MIB = 2**20


class Lost(Exception):
    """A job or a chunk was lost, or a process exited too early.

    Attributes:
        output: The last lines of the process's output, if they are known.
    """

    def __init__(self, message: str, output: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.output = list(output)


@asynccontextmanager
async def run_process(
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    quiet: bool = False,
    merged: bool = False,
    stdout: int = PIPE,
    stdin: int | None = None,
) -> AsyncIterator[Process]:
    """Run a command in the repository's root with additional variables; kill it at the end.

    Its standard output is a pipe unless DEVNULL is passed; its standard input is a pipe only if
    PIPE is passed. `quiet` discards its standard error, `merged` sends it to its standard output.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        env={**os.environ, **environ},
        stdin=stdin,
        stdout=stdout,
        stderr=STDOUT if merged else DEVNULL if quiet else None,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        _kill_session(process.pid)
        # Otherwise a process that can't be killed would hold the pipes open for ever.
        with suppress(TimeoutError):
            await asyncio.wait_for(process.communicate(), KILL_S)


def _kill_session(leader: int) -> None:
    """Kill a process, its descendants and those that survived their parent, until none is left.

    Python's resource trackers end by themselves after the others, and remove their shared memory.
    This blocks the event loop for some milliseconds, so that no cancel interrupts it.
    """
    # Some of them may have sessions of their own.
    descendants: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        descendants = psutil.Process(leader).children(recursive=True)
    began = trackers_began = time.monotonic()
    while members := [*_session_members(leader), *filter(_is_alive, descendants)]:
        now = time.monotonic()
        if others := [member for member in members if not is_resource_tracker(member)]:
            trackers_began = now
        for member in others if now < trackers_began + TRACKERS_S else members:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        if now > began + KILL_S:
            break
        time.sleep(0.01)


def is_resource_tracker(process: psutil.Process) -> bool:
    """Return whether a process is a tracker, as soon as its command is known."""
    deadline = time.monotonic() + COMMAND_S
    with suppress(psutil.NoSuchProcess):
        # A process has an empty command while it loads its program.
        while not (command := process.cmdline()) and time.monotonic() < deadline:
            time.sleep(0.001)
        return TRACKER in " ".join(command)
    return False


def _session_members(leader: int) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(ProcessLookupError):
            if os.getsid(process.pid) == leader and _is_alive(process):
                yield process


def _is_alive(process: psutil.Process) -> bool:
    # A dead process remains until its parent has waited for it.
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


async def next_line(process: Process, prefix: str) -> list[str]:
    """Return the words of the next line of the output that begins with the prefix."""
    assert process.stdout is not None
    async for line in process.stdout:
        if line.startswith(prefix.encode()):
            return line.decode().split()
    raise Lost("the process ended too early")


def print_line(*words: object) -> None:
    """Print words as one line of a child's output, for ``next_line`` of its parent.

    A single write ensures that other output of the process can't split the line.
    """
    os.write(1, f"\n{' '.join(map(str, words))}\n".encode())


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and its descendants, including exited ones."""
    total = 0.0
    for process in _tree(pid):
        # The time of a process that exits meanwhile is added to its parent's.
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def memory_mib(pid: int) -> float:
    """Return the sum of the proportional set sizes, in which a shared page counts once."""
    total = 0.0
    for process in _tree(pid):
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total / MIB


def _tree(pid: int) -> Iterator[psutil.Process]:
    root = psutil.Process(pid)
    yield root
    yield from root.children(recursive=True)
