"""Runs the doctor and a start, in forks of a process that has imported vLLM, or by their commands.

A fork runs the code of ``handler.py`` from the settings on. The import, which takes three quarters
of the time of both commands, is the same for all.
"""

import asyncio
import contextlib
import ctypes
import json
import logging
import math
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import aiohttp
import psutil
from support import ROOT
from support.processes.background import start_command
from support.processes.commands import HANDLER, run_command

import handler
from emulator import Emulator, Options
from worker import doctor, local, logs
from worker.app import Worker
from worker.children.with_parent import exit_with_parent
from worker.command_line import read_command_line
from worker.engine import Engines
from worker.errors import StartFailed, WorkerError
from worker.failed_start import FailedStartHandler, should_answer_callers
from worker.settings import Settings
from worker.settings.environment import environ_with_secrets
from worker.settings.sources import gather_settings

# Seconds until a trial that hangs is killed. On an idle machine most starts take three seconds.
TIMEOUT_S = 120.0
POLL_S = 0.02
# Between two looks at a job of a worker that was started by its command.
JOB_POLL_S = 0.1
# Address space of a process, in bytes, about four times as much as a start needs: a contradiction
# in a configuration may request any amount of memory, and the machine has other programs.
MAX_MEMORY = 6 * 2**30
# One of them suits every model that generates; a model that pools refuses both with a 400.
JOBS: tuple[dict[str, Any], ...] = (
    {"messages": [{"role": "user", "content": "Hi"}], "sampling_params": {"max_tokens": 2}},
    {"prompt": "Hi", "sampling_params": {"max_tokens": 2}},
)
# Starts of the messages of forks that end without a verdict.
HANGS, CRASHES = "it hangs", "it crashes"
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Verdict:
    """The result of the doctor or of a start.

    Attributes:
        works: Whether the worker would start, or did start and has answered a job.
        message: The failed findings, or the error of the start.
        callers_message: The error that waiting callers get; empty if they get none.
    """

    works: bool
    message: str = ""
    callers_message: str = ""


def become_subreaper() -> None:
    """Make this process the parent of all its descendants that outlive their parents."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run_doctor(environ: Mapping[str, str], folder: Path) -> Verdict:
    """Run ``handler.py --check`` in a fork."""
    return run_in_fork(_examine, environ, folder / "doctor")


def run_start(
    environ: Mapping[str, str], folder: Path, killed_after_s: float | None = None
) -> Verdict:
    """Start a worker in a fork, and let it answer a job.

    ``killed_after_s`` are the seconds from the appearance of its core until the core is killed.
    """
    return run_in_fork(_start, environ, folder / "start", killed_after_s)


def _examine(output: Path) -> Verdict:
    raw = gather_settings(environ_with_secrets())
    status = doctor.main(raw)
    sys.stdout.flush()
    printed = output.read_text()
    if "The worker would " not in printed:
        return Verdict(False, f"the doctor printed no conclusion: {printed[-400:]}")
    return Verdict(status == 0, " ".join(printed.split()))


def _start(output: Path) -> Verdict:
    mode = handler.MODES[-1]  # the mode that runs one job
    run = handler.ProgramRun(mode, read_command_line(), gather_settings(environ_with_secrets()))
    try:
        with run.start_engines() as (engines, settings):
            problem = asyncio.run(_answer_jobs(engines, settings))
            # Exit within the block: the fork's processes are killed, which is faster than to stop
            # the engines.
            _write_verdict_and_exit(Verdict(not problem, problem), output)
    except StartFailed as error:
        answer = ""
        if should_answer_callers(error, run.raw_settings.values):
            answer = FailedStartHandler(error).error.message
        return Verdict(False, f"{type(error).__name__}: {error.message}", answer)
    except WorkerError as error:
        return Verdict(False, f"{type(error).__name__}: {error.message}")


async def _answer_jobs(engines: Engines, settings: Settings) -> str:
    """Run the SDK's check of fitness and a job; return the problem, or an empty string."""
    worker = Worker(engines, settings, timeout_s=TIMEOUT_S)
    try:
        await local.make_fitness_check(worker, engines)()
    except RuntimeError as error:
        return f"the check of fitness fails: {error}"
    status = 0
    for job in JOBS:
        async for chunk in worker.handle({"id": "fuzz", "input": job}):
            text = isinstance(chunk, dict) and chunk.get("error")
            status = json.loads(text)["error"]["code"] if text else 200
            if status >= 500:
                return f"a job fails: {text}"
        if status == 200:
            break
    return ""


def run_in_fork(
    function: Callable[[Path], Verdict],
    environ: Mapping[str, str],
    output: Path,
    killed_after_s: float | None = None,
) -> Verdict:
    """Run a function in a fork with an environment, and kill all processes that it leaves.

    A fork that ends without a verdict has crashed, and one that takes too long hangs. In both cases
    no caller gets an answer.
    """
    parent, pid = os.getpid(), os.fork()
    if not pid:
        _run_and_exit(function, environ, output, parent)
    ended, deadline = (0, 0), time.monotonic() + TIMEOUT_S
    kill_core_at = None if killed_after_s is None else math.inf
    try:
        while not (ended := os.waitpid(pid, os.WNOHANG))[0] and time.monotonic() < deadline:
            time.sleep(POLL_S)
            if kill_core_at is not None and (core := _find_core()):
                kill_core_at = min(kill_core_at, time.monotonic() + (killed_after_s or 0))
                if time.monotonic() >= kill_core_at:
                    core.kill()
                    kill_core_at = None
    finally:
        kill_descendants()
    result = output.with_suffix(".json")
    if not ended[0]:
        return Verdict(False, f"{HANGS}: {_last_lines(output)}")
    if not result.exists():
        return Verdict(False, f"{CRASHES} with status {ended[1]}: {_last_lines(output)}")
    return Verdict(**json.loads(result.read_text()))


def _find_core() -> psutil.Process | None:
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "EngineCore" in str(child.cmdline()):
                return child
    return None


def _last_lines(output: Path) -> str:
    return output.with_suffix(".log").read_text(errors="replace")[-400:]


def kill_descendants() -> None:
    """Kill and reap all processes that this one and its descendants have started."""
    while children := psutil.Process().children(recursive=True):
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, 0):
                pass


def _run_and_exit(
    function: Callable[[Path], Verdict], environ: Mapping[str, str], output: Path, parent: int
) -> None:
    """Run a function like a command of this checkout, write its verdict, and exit."""
    try:
        exit_with_parent(parent)
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
        os.chdir(ROOT)
        os.environ.clear()
        os.environ.update(environ)
        tempfile.tempdir = None  # It is computed from the environment once.
        sys.argv = ["src/handler.py"]
        # A core that is started by a new interpreter imports this module.
        sys.modules["__main__"] = handler
        for number, suffix in {1: "", 2: ".log"}.items():
            with output.with_name(output.name + suffix).open("ab") as file:
                os.dup2(file.fileno(), number)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        logs.set_up("", (2,))
        logging.getLogger("worker").setLevel(logging.INFO)
        _write_verdict_and_exit(function(output), output)
    finally:
        traceback.print_exc()
        # The threads of engines and look-ups may still run.
        os._exit(1)


def _write_verdict_and_exit(verdict: Verdict, output: Path) -> NoReturn:
    output.with_suffix(".modules").write_text("\n".join(sys.modules))
    output.with_suffix(".json").write_text(json.dumps(vars(verdict)))
    os._exit(0)


# The same by the real commands, to check the trials above.


def check_by_command(environ: Mapping[str, str], folder: Path) -> Verdict:
    """Run ``handler.py --check``."""
    return run_in_fork(partial(_check, environ), environ, folder / "check")


def start_by_command(
    environ: Mapping[str, str], folder: Path, killed_after_s: float | None
) -> Verdict:
    """Start a worker for which a job is waiting, and return how the job ends."""
    start = partial(_run_worker, environ, killed_after_s)
    return run_in_fork(start, environ, folder / "worker")


def _check(environ: Mapping[str, str], _: Path) -> Verdict:
    ran = run_command(environ, *HANDLER, "--check")
    return Verdict(ran.returncode == 0, " ".join(ran.stdout.split()))


def _run_worker(environ: Mapping[str, str], killed_after_s: float | None, output: Path) -> Verdict:
    log = output.with_suffix(".worker")
    report = asyncio.run(_run_job(environ, log, killed_after_s))
    last_line = (log.read_text(errors="replace").strip().splitlines() or [""])[-1][:400]
    if report["status"] == "COMPLETED":
        return Verdict(True)
    if report["status"] != "FAILED":
        return Verdict(False, f"the job waits: {last_line}")
    error = json.loads(report["error"])["error"]
    message = f"{error['code']}: {error['message']}"
    if error["code"] < 500:
        return Verdict(True)
    is_final = error["code"] == 503 and not error["retryable"]
    return Verdict(False, message, error["message"] if is_final else "")


async def _run_job(
    environ: Mapping[str, str], log: Path, killed_after_s: float | None
) -> dict[str, Any]:
    """Start a worker for which a job is waiting; return the job's report after its end."""
    async with (
        Emulator(Options(long_poll_s=1)) as emulator,
        aiohttp.ClientSession(f"{emulator.url}/") as session,
    ):
        async with session.post("run", json={"input": JOBS[0]}) as answer:
            job_id = (await answer.json())["id"]
        environ = {**environ, **emulator.worker_environ()}
        with start_command(HANDLER, environ, log) as worker:
            while True:
                has_exited = worker.process.poll() is not None
                async with session.get(f"status/{job_id}") as answer:
                    report: dict[str, Any] = await answer.json()
                if has_exited or report["status"] not in ("IN_QUEUE", "IN_PROGRESS"):
                    return report
                if killed_after_s is not None and (pids := worker.core_pids()):
                    await asyncio.sleep(killed_after_s)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pids[0], signal.SIGKILL)
                    killed_after_s = None
                await asyncio.sleep(JOB_POLL_S)
