"""Runs the doctor and a worker of the queue by their real commands, to check the forked trials."""

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from support.processes.background import start_command
from support.processes.commands import HANDLER, run_command

from emulator import Emulator, Options
from fuzz.starts.trials import JOBS, Verdict, run_in_fork

POLL_S = 0.1


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
                    with suppress(ProcessLookupError):
                        os.kill(pids[0], signal.SIGKILL)
                    killed_after_s = None
                await asyncio.sleep(POLL_S)
