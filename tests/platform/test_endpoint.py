"""Tests of the local endpoint with several workers, a dead worker, and its shutdown."""

import concurrent.futures
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import runpod
from support.processes.background import HUNG_S, wait_until
from support.processes.commands import HOME, run_command
from support.processes.scripted_worker import COMMAND, ENVIRON
from support.processes.servers import READY, LocalEndpoint, local_endpoint

# Seconds; longer than the test waits.
GRACE_S = 10 * HUNG_S


@contextmanager
def start_scripted_endpoint(folder: Path, workers: int) -> Iterator[LocalEndpoint]:
    """Start an endpoint whose workers run the real SDK without an engine."""
    emulator = [sys.executable, "-m", "emulator", "--port", "0", "--logs", str(folder)]
    command = [*emulator, "--workers", str(workers), "--grace", str(GRACE_S), "--", *COMMAND]
    with (
        local_endpoint(command, ENVIRON, folder / "output") as endpoint,
        pytest.MonkeyPatch.context() as patch,
    ):
        endpoint.wait_for_output("is ready after", times=workers)
        endpoint.wait_for_output(READY)  # until then, a job for the model's name runs
        patch.setattr(runpod, "endpoint_url_base", endpoint.api_url)
        yield endpoint


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({"EMULATOR_API_KEY": "secret"}, "BATCH_API_KEY is set to the emulator's key."),
        ({"BATCH_API_KEY": ""}, "BATCH_API_KEY is empty,"),
        ({"BATCH_API_KEY": "secret"}, "BATCH_API_KEY is the key that you have set"),
        ({"OPTIONS": "--load-balancing"}, ""),
    ],
    ids=str,
)
def test_make_endpoint_says_which_key_the_workers_have(environ: dict[str, str], line: str) -> None:
    # The emulator refuses the port, so that no worker starts.
    ran = run_command({**HOME, **environ}, "make", "-s", "endpoint", "PORT=none")
    assert "argument --port: a whole number" in ran.stderr
    assert ran.stdout.count("BATCH_API_KEY is ") == bool(line)
    assert ran.stdout.startswith(line)
    assert "secret" not in ran.stdout


@pytest.mark.slow
def test_several_workers_share_the_queue_and_a_dead_one_is_replaced(tmp_path: Path) -> None:
    def run(number: int) -> dict[str, Any]:
        client = runpod.Endpoint("local", api_key="any").rp_client
        job = {"input": {"yields": [number]}}
        report: dict[str, Any] = client.post("local/runsync", job, timeout=HUNG_S)
        return report

    workers = set[str]()

    def all_workers_have_served() -> bool:
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            reports = list(pool.map(run, range(100)))
        assert [report["output"] for report in reports] == [[number] for number in range(100)]
        workers.update(report["workerId"] for report in reports)
        return workers == {"worker-1", "worker-2", "worker-3"}

    with start_scripted_endpoint(tmp_path, workers=3) as endpoint:
        wait_until(all_workers_have_served)
        endpoint.control("workers/worker-2/signal", {"signal": "SIGKILL"})
        endpoint.wait_for_output("worker-2 exited by SIGKILL")
        endpoint.wait_for_output("worker-2 is ready after", times=2)


def test_a_second_ctrl_c_stops_running_jobs_and_leaves_no_process(tmp_path: Path) -> None:
    with start_scripted_endpoint(tmp_path, workers=1) as endpoint:
        client = runpod.Endpoint("local", api_key="any")
        job = client.run({"yields": ["begun", "hang"]})
        # The hanging job blocks the shutdown for the whole grace period, unless Ctrl-C is pressed
        # twice.
        assert next(iter(job.stream())) == "begun"
        endpoint.press_ctrl_c()
        endpoint.wait_for_output(
            f"Stopping; running jobs (1) get {GRACE_S:g} s. Ctrl-C again: stop immediately."
        )
        with pytest.raises(runpod.endpoint.runner.requests.HTTPError, match="503"):
            client.run({"yields": ["late"]})
        endpoint.press_ctrl_c()
        assert endpoint.wait_for_exit() == 0
        assert endpoint.leftover_pids() == []
