"""The process that trains: its environment, what it said last, its ends, and their reasons."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from support.processes.background import HUNG_S, eventually, wait_until

from worker import masking
from worker.fine_tunes import child as module
from worker.fine_tunes.child import NICENESS, TAIL, Child, reason_of
from worker.settings.environment import WANDB_KEY, take_secrets

SLEEPS = "import time; time.sleep(600)"
# A process that starts another one, which holds its standard error open.
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEPS!r}])"
SOURCES = Path(module.__file__).parents[2]


@asynccontextmanager
async def started(script: str, **options: bool) -> AsyncIterator[Child]:
    child = await Child.started((sys.executable, "-c", script), **{"nice": False, **options})
    try:
        yield child
    finally:
        await child.kill()


def is_running(command: str) -> bool:
    """Return whether a descendant of this process has a command with a text."""
    for one in psutil.Process().children(recursive=True):
        # It may have just ended.
        with contextlib.suppress(psutil.NoSuchProcess):
            if one.status() != psutil.STATUS_ZOMBIE and command in one.cmdline():
                return True
    return False


async def test_its_status_and_what_it_said_last_are_kept() -> None:
    script = f"import sys; sys.stderr.write('x' * {3 * TAIL} + 'the end'); sys.exit(74)"
    async with started(script) as child:
        assert await child.ended() == 74
        assert child.said.endswith("xthe end")
        assert len(child.said) == TAIL
        # Asked once more, nothing else happens.
        assert await child.kill() == 74


async def test_a_wait_that_is_too_short_ends_nothing() -> None:
    async with started(SLEEPS) as child:
        assert await child.ended(0.01) is None
        child.terminate()
        assert await child.ended() == -signal.SIGTERM
        child.terminate()


async def test_a_process_that_does_not_listen_is_killed_with_all_that_it_started() -> None:
    async with started(f"import signal; signal.signal(15, signal.SIG_IGN); {PARENT}") as child:
        await eventually(lambda: is_running(SLEEPS))
        child.terminate()
        assert await child.ended(0.2) is None
        assert await child.kill() == -signal.SIGKILL
        await eventually(lambda: not is_running(SLEEPS))


async def test_what_it_leaves_running_when_it_ends_is_killed() -> None:
    starts = f"[sys.executable, '-c', {SLEEPS!r}], stderr=subprocess.DEVNULL"
    script = f"import subprocess, sys; sys.stderr.write(str(subprocess.Popen({starts}).pid))"
    async with started(script) as child:
        assert await child.ended() == 0
        await eventually(lambda: not psutil.pid_exists(int(child.said)))


@pytest.mark.parametrize("wandb", [False, True])
async def test_its_environment_is_offline_and_has_no_secret_but_the_one_it_needs(
    monkeypatch: pytest.MonkeyPatch, wandb: bool
) -> None:
    for name in ("HF_TOKEN", "RUNPOD_AI_API_KEY", WANDB_KEY):
        monkeypatch.setenv(name, f"secret-{name}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("worker.settings.environment._taken", {})
    take_secrets()
    script = "import json, os, sys; sys.stderr.write(json.dumps(dict(os.environ)))"
    async with started(script, wandb=wandb) as child:
        assert await child.ended() == 0
        environ = json.loads(child.said)
    secrets = [value for value in environ.values() if value.startswith("secret-")]
    assert secrets == [f"secret-{WANDB_KEY}"] * wandb
    assert "OMP_NUM_THREADS" not in environ
    assert (environ["HF_HUB_OFFLINE"], environ["OMP_WAIT_POLICY"]) == ("1", "passive")
    assert environ["PYTHONPATH"].split(":")[0] == str(SOURCES)


async def test_it_has_all_cores_and_lets_others_go_first() -> None:
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(own)})
    try:
        async with started(SLEEPS, nice=True) as child:
            assert os.sched_getaffinity(child.pid) == cores
            assert os.getpriority(os.PRIO_PROCESS, child.pid) == NICENESS
    finally:
        os.sched_setaffinity(0, own)


def test_it_does_not_outlive_a_worker_that_is_killed(tmp_path: Path) -> None:
    """As a trainer whose steps have begun, it does not end when SIGTERM asks it to."""
    ignores = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    says = f"{ignores}; open('pid', 'w').write(str(os.getpid())); time.sleep(600)"
    script = f"""
import asyncio, sys
from worker.fine_tunes.child import Child
async def main():
    child = await Child.started((sys.executable, "-c", {says!r}), nice=False)
    await child.ended()
asyncio.run(main())
"""
    environ, pid = {**os.environ, "PYTHONPATH": str(SOURCES)}, tmp_path / "pid"
    worker = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, env=environ)
    try:
        wait_until(lambda: pid.exists() and pid.read_text())
        child = psutil.Process(int(pid.read_text()))
    finally:
        worker.kill()
        worker.wait()
    child.wait(HUNG_S)


async def test_a_worker_that_is_cancelled_while_it_starts_one_leaves_none() -> None:
    for waits in range(6):
        starting = asyncio.create_task(Child.started((sys.executable, "-c", SLEEPS), nice=False))
        for _ in range(waits):
            await asyncio.sleep(0.001)
        if starting.done():
            await starting.result().kill()
        starting.cancel()
        await asyncio.wait({starting})
    await eventually(lambda: not is_running(SLEEPS))


TRACE = 'Traceback (most recent call last):\n  File "/opt/worker/a.py", line 5, in run\n    run()\n'
CRASHED = "The process that trains has crashed: "
ENDED = "The process that trains was ended by "
MORE = "The training needs more memory than there is: "
LACKS = "RuntimeError: DefaultCPUAllocator: can't allocate memory"
HELP = "(FINE_TUNE_MAX_LENGTH), a smaller batch_size or a worker with more memory help."


@pytest.mark.parametrize(
    ("status", "said", "begin", "end"),
    [
        (1, f"{TRACE}ValueError: wrong\n", CRASHED, "ValueError: wrong"),
        (1, f"{TRACE}OSError: no file /a/x/y.bin here\n", CRASHED, "OSError: no file ... here"),
        (1, "ValueError: https://host/path\n\n", CRASHED, "ValueError: https://host/path"),
        (1, "KeyError: 5\n/opt/a.py:3: UserWarning: old\n  warn()\n", CRASHED, "KeyError: 5"),
        (1, f"ValueError: sk-canary {'x' * 5_000}", CRASHED, f"ValueError: *** {'x' * 284}"),
        (1, "\n \n", CRASHED, "status 1"),
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried", f"{MORE}torch.Out", HELP),
        (1, LACKS, f"{MORE}{LACKS}", HELP),
        (-signal.SIGKILL, "", f"{ENDED}SIGKILL, probably because this machine's memory", HELP),
        (-signal.SIGSEGV, "", ENDED, "SIGSEGV."),
        (-40, "", ENDED, "signal 40."),
    ],
)
def test_the_last_line_is_the_reason_without_paths_and_secrets(
    monkeypatch: pytest.MonkeyPatch, status: int, said: str, begin: str, end: str
) -> None:
    monkeypatch.setattr(masking, "_secrets", [])
    masking.hide(["sk-canary"])
    reason = reason_of(status, said)
    assert (reason[: len(begin)], reason[-len(end) :]) == (begin, end)
