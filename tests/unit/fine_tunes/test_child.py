"""The trainer process: its environment, its last output, its exit, and the reason for it."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from support.processes.background import poll_until

from worker import masking
from worker.fine_tunes import child as module
from worker.fine_tunes.child import MAX_STDERR_BYTES, NICENESS, TrainerProcess, explain_exit
from worker.settings.environment import WANDB_KEY, pop_secrets

SLEEPS = "import time; time.sleep(600)"
# A process with a child that keeps the standard error open.
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEPS!r}])"
SOURCES = Path(module.__file__).parents[2]


@asynccontextmanager
async def start_process(script: str, **options: bool) -> AsyncIterator[TrainerProcess]:
    child = await TrainerProcess.start(
        (sys.executable, "-c", script), **{"low_priority": False, **options}
    )
    try:
        yield child
    finally:
        await child.kill()


def is_running(argument: str) -> bool:
    """Return whether a descendant of this process has an argument in its command."""
    for process in psutil.Process().children(recursive=True):
        # The process may have just exited.
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE and argument in process.cmdline():
                return True
    return False


async def test_exit_status_and_last_output_are_available() -> None:
    script = f"import sys; sys.stderr.write('x' * {3 * MAX_STDERR_BYTES} + 'the end'); sys.exit(74)"
    async with start_process(script) as child:
        assert await child.wait() == 74
        assert child.stderr_tail.endswith("xthe end")
        assert len(child.stderr_tail) == MAX_STDERR_BYTES
        # After the exit, a kill only returns the status.
        assert await child.kill() == 74


async def test_a_wait_that_times_out_leaves_the_process_running() -> None:
    async with start_process(SLEEPS) as child:
        assert await child.wait(0.01) is None
        child.terminate()
        assert await child.wait() == -signal.SIGTERM
        child.terminate()


async def test_a_process_that_ignores_sigterm_is_killed_with_its_children() -> None:
    async with start_process(
        f"import signal; signal.signal(15, signal.SIG_IGN); {PARENT}"
    ) as child:
        await poll_until(lambda: is_running(SLEEPS))
        child.terminate()
        assert await child.wait(0.2) is None
        assert await child.kill() == -signal.SIGKILL
        await poll_until(lambda: not is_running(SLEEPS))


async def test_children_that_outlive_the_process_are_killed() -> None:
    arguments = f"[sys.executable, '-c', {SLEEPS!r}], stderr=subprocess.DEVNULL"
    script = f"import subprocess, sys; sys.stderr.write(str(subprocess.Popen({arguments}).pid))"
    async with start_process(script) as child:
        assert await child.wait() == 0
        await poll_until(lambda: not psutil.pid_exists(int(child.stderr_tail)))


@pytest.mark.parametrize("wandb", [False, True])
async def test_the_environment_is_offline_and_contains_only_the_necessary_secret(
    monkeypatch: pytest.MonkeyPatch, wandb: bool
) -> None:
    for name in ("HF_TOKEN", "RUNPOD_AI_API_KEY", WANDB_KEY):
        monkeypatch.setenv(name, f"secret-{name}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("worker.settings.environment._secrets", {})
    pop_secrets()
    script = "import json, os, sys; sys.stderr.write(json.dumps(dict(os.environ)))"
    async with start_process(script, wandb=wandb) as child:
        assert await child.wait() == 0
        environ = json.loads(child.stderr_tail)
    secrets = [value for value in environ.values() if value.startswith("secret-")]
    assert secrets == [f"secret-{WANDB_KEY}"] * wandb
    assert "OMP_NUM_THREADS" not in environ
    assert (environ["HF_HUB_OFFLINE"], environ["OMP_WAIT_POLICY"]) == ("1", "passive")
    assert environ["PYTHONPATH"].split(":")[0] == str(SOURCES)


async def test_the_process_may_use_all_cores_at_a_low_priority() -> None:
    affinity = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(affinity)})
    try:
        async with start_process(SLEEPS, low_priority=True) as child:
            assert os.sched_getaffinity(child.pid) == cores
            assert os.getpriority(os.PRIO_PROCESS, child.pid) == NICENESS
    finally:
        os.sched_setaffinity(0, affinity)


async def test_a_cancelled_start_leaves_no_process() -> None:
    for waits in range(6):
        starting = asyncio.create_task(
            TrainerProcess.start((sys.executable, "-c", SLEEPS), low_priority=False)
        )
        for _ in range(waits):
            await asyncio.sleep(0.001)
        if starting.done():
            await starting.result().kill()
        starting.cancel()
        await asyncio.wait({starting})
    await poll_until(lambda: not is_running(SLEEPS))


TRACE = 'Traceback (most recent call last):\n  File "/opt/worker/a.py", line 5, in run\n    run()\n'
CRASHED = "The process that trains has crashed: "
KILLED = "The process that trains was ended by "
NEEDS_MEMORY = "The training needs more memory than there is: "
NO_MEMORY = "RuntimeError: DefaultCPUAllocator: can't allocate memory"
ADVICE = "(FINE_TUNE_MAX_LENGTH), a smaller batch_size or a worker with more memory help."


@pytest.mark.parametrize(
    ("status", "output", "prefix", "suffix"),
    [
        (1, f"{TRACE}ValueError: wrong\n", CRASHED, "ValueError: wrong"),
        (1, f"{TRACE}OSError: no file /a/x/y.bin here\n", CRASHED, "OSError: no file ... here"),
        (1, "ValueError: https://host/path\n\n", CRASHED, "ValueError: https://host/path"),
        (1, "KeyError: 5\n/opt/a.py:3: UserWarning: old\n  warn()\n", CRASHED, "KeyError: 5"),
        (1, f"ValueError: sk-canary {'x' * 5_000}", CRASHED, f"ValueError: *** {'x' * 284}"),
        (1, "\n \n", CRASHED, "status 1"),
        (
            1,
            "torch.OutOfMemoryError: CUDA out of memory. Tried",
            f"{NEEDS_MEMORY}torch.Out",
            ADVICE,
        ),
        (1, NO_MEMORY, f"{NEEDS_MEMORY}{NO_MEMORY}", ADVICE),
        (-signal.SIGKILL, "", f"{KILLED}SIGKILL, probably because this machine's memory", ADVICE),
        (-signal.SIGSEGV, "", KILLED, "SIGSEGV."),
        (-40, "", KILLED, "signal 40."),
    ],
)
def test_the_reason_is_the_last_line_without_paths_and_secrets(
    monkeypatch: pytest.MonkeyPatch, status: int, output: str, prefix: str, suffix: str
) -> None:
    monkeypatch.setattr(masking, "_secrets", [])
    masking.add_secrets(["sk-canary"])
    reason = explain_exit(status, output)
    assert (reason[: len(prefix)], reason[-len(suffix) :]) == (prefix, suffix)
