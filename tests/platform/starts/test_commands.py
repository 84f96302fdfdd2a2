"""Tests of commands as new users and operators type them."""

import re
import signal
from pathlib import Path

import psutil
import pytest
from support.models.damaged import copy_damaged
from support.processes.background import start_command, wait_until
from support.processes.commands import DEMO, HANDLER, SCRIPT, WORKER, run_command

pytestmark = pytest.mark.usefixtures("demo_model")


def test_an_invalid_local_job_fails_without_a_cold_start() -> None:
    # unit/test_local.py tests other invalid jobs.
    result = run_command(
        WORKER, *HANDLER, "--test_input", '{"input": {"prompt": "Hi", "strem": true}}'
    )
    assert result.returncode == 1
    assert "did you mean 'stream'?" in result.stderr
    assert "Traceback" not in result.stderr
    assert "start-up: " not in result.stderr


# test_log_format.py stops a startup later, while the engine starts.
def test_sigterm_while_vllm_is_imported_stops_the_worker_immediately(tmp_path: Path) -> None:
    environ = {**WORKER, "RUNPOD_WEBHOOK_GET_JOB": "http://127.0.0.1:9/job-take/$ID?x=1"}
    with start_command(HANDLER, environ, tmp_path / "log") as worker:
        process = psutil.Process(worker.process.pid)
        # The import of vLLM starts with torch.
        wait_until(lambda: any("libtorch" in loaded.path for loaded in process.memory_maps()))
        worker.process.terminate()
        assert worker.wait_for_exit() == 128 + signal.SIGTERM
        wait_until(lambda: not worker.session_pids())
        assert "start-up: sdk" not in worker.output


def test_a_model_that_vllm_cannot_start_is_reported_without_a_traceback(tmp_path: Path) -> None:
    copy_damaged(DEMO, tmp_path / "no-model", "no config.json")
    result = run_command({**WORKER, "MODEL_NAME": str(tmp_path / "no-model")}, SCRIPT)
    assert result.returncode == 1
    assert re.search(r"^vLLM could not start \S*no-model\S*: ", result.stderr, re.MULTILINE)
    assert "Traceback" not in result.stderr
