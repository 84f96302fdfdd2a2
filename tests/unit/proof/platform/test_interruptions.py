"""A run that is interrupted or killed, and the run after it, on a real platform's faults."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support import ROOT
from support.processes.background import BackgroundProcess, start_command, wait_until
from support.processes.commands import HOME
from support.runpod_api.server import KEY, Fault, Runpod
from unit.proof.platform.conftest import Prove

# The fault of each moment, the end of the path of the call after which the signal is sent, and
# whether jobs end. A fault with status 0 leaves a call without a response.
MOMENTS = {
    "creation": (Fault("POST", 0, path_end="/serverless", takes_effect=True), "/serverless", True),
    "first response": (None, "/status/job2", False),
    "step": (Fault("GET", 0, path_end="/health"), "/health", True),
    "deletion": (Fault("DELETE", 0), "/serverless/ep1", True),
}
SIGNALS = (
    ("creation", ("SIGINT",)),
    ("first response", ("SIGTERM",)),
    # A terminal that is closed.
    ("step", ("SIGHUP", "SIGHUP", "SIGTERM")),
    *((moment, ("SIGKILL",)) for moment in ("creation", "first response", "deletion")),
)


@contextmanager
def start_run(runpod: Runpod, folder: Path) -> Iterator[BackgroundProcess]:
    urls = ("--api-url", f"{runpod.url}/v2", "--queue-url", f"{runpod.url}/queue")
    command = [sys.executable, "-m", "proof.platform", "--image", "a/b:1", "--yes", *urls]
    command += ["--output", str(folder / "first"), "--only", "health"]
    environ = {**HOME, "RUNPOD_API_KEY": KEY, "PYTHONPATH": str(ROOT / "src")}
    with start_command(command, environ, folder / "log") as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "names"), SIGNALS, ids=[f"{moment}, {names[0]}" for moment, names in SIGNALS]
)
def test_an_interrupted_run_leaves_nothing_after_the_next_one(
    prove: Prove, runpod: Runpod, tmp_path: Path, moment: str, names: tuple[str, ...]
) -> None:
    fault, path_end, do_jobs_end = MOMENTS[moment]
    runpod.polls_until_done = 0 if do_jobs_end else 10**9
    if fault:
        runpod.faults.append(replace(fault))
    verb = fault.verb if fault else "GET"

    def is_at_moment() -> bool:
        return any(call.verb == verb and call.path.endswith(path_end) for call in runpod.calls)

    with start_run(runpod, tmp_path) as running:
        wait_until(is_at_moment)
        for name in names:
            running.process.send_signal(signal.Signals[name])
        status = running.wait_for_exit()
    is_killed = "SIGKILL" in names
    assert status == (-signal.SIGKILL if is_killed else 130), running.output
    assert len(runpod.endpoints) == is_killed
    assert KEY not in running.output
    runpod.faults.clear()
    runpod.polls_until_done = 0
    assert prove("--yes", "--only", "health")[0] == 0
    assert runpod.endpoints == {}
