"""Tests of the local endpoint: the key of its workers, and its shutdown."""

import sys
from pathlib import Path

import pytest
import runpod
from support.processes.background import HUNG_S
from support.processes.commands import HOME, run_command
from support.processes.scripted_worker import COMMAND, ENVIRON
from support.processes.servers import READY, local_endpoint


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
def test_a_second_ctrl_c_stops_running_jobs_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The worker runs the real SDK without an engine. A hanging job blocks the shutdown for
    # the grace period, longer than the test waits, unless Ctrl-C is pressed twice.
    grace_s = 10 * HUNG_S
    emulator = [sys.executable, "-m", "emulator", "--port", "0", "--logs", str(tmp_path)]
    command = [*emulator, "--grace", str(grace_s), "--", *COMMAND]
    with local_endpoint(command, ENVIRON, tmp_path / "output") as endpoint:
        endpoint.wait_for_output(READY)  # until then, a job for the model's name runs
        monkeypatch.setattr(runpod, "endpoint_url_base", endpoint.api_url)
        client = runpod.Endpoint("local", api_key="any")
        job = client.run({"yields": ["begun", "hang"]})
        assert next(iter(job.stream())) == "begun"
        endpoint.press_ctrl_c()
        endpoint.wait_for_output(
            f"Stopping; running jobs (1) get {grace_s:g} s. Ctrl-C again: stop immediately."
        )
        with pytest.raises(runpod.endpoint.runner.requests.HTTPError, match="503"):
            client.run({"yields": ["late"]})
        endpoint.press_ctrl_c()
        assert endpoint.wait_for_exit() == 0
        assert endpoint.leftover_pids() == []
