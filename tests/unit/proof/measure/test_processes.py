"""Processes of a measurement end with it, however they were started."""

import sys
from pathlib import Path

import psutil
import pytest
from support.processes.background import pids_with_variable

from proof.measure.processes import Lost, next_line, run_process

VARIABLE = "STARTED_BY_TEST_PROCESSES"
# Children in a process group and in a session of their own, and one whose parent has exited.
FAMILY = """
import subprocess, sys
wait = "import time; time.sleep(600)"
subprocess.Popen([sys.executable, "-c", wait], process_group=0)
subprocess.Popen([sys.executable, "-c", wait], start_new_session=True)
parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {wait!r}])"
subprocess.run([sys.executable, "-c", parent])
print("started", flush=True)
import time; time.sleep(600)
"""
# It also starts the resource tracker.
SHARES_MEMORY = """
from multiprocessing.shared_memory import SharedMemory
print("memory", SharedMemory(create=True, size=100).name, flush=True)
import time; time.sleep(600)
"""


async def test_all_descendants_end_with_the_block() -> None:
    environ = {VARIABLE: str(id(object()))}
    async with run_process((sys.executable, "-c", FAMILY), environ) as process:
        await next_line(process, "started")
        assert len(pids_with_variable(VARIABLE, environ[VARIABLE])) == 4
    assert pids_with_variable(VARIABLE, environ[VARIABLE]) == []
    assert not psutil.pid_exists(process.pid)


async def test_an_exit_before_the_expected_line_is_an_error() -> None:
    async with run_process((sys.executable, "-c", "print('no')"), {}) as process:
        with pytest.raises(Lost, match="ended too early"):
            await next_line(process, "started")


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


async def test_no_shared_memory_remains() -> None:
    async with run_process((sys.executable, "-c", SHARES_MEMORY), {}) as process:
        _, name = await next_line(process, "memory")
        assert name in shared_memory()
    assert name not in shared_memory()
