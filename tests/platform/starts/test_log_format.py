"""Tests that every line of a startup's log in JSON is one object, for all processes that print.

test_whole_worker.py tests the log of a worker's whole life.
"""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from support.hub.downloads import NAME, PREFETCH, TOKEN, worker_environ
from support.hub.server import Hub
from support.processes.background import start_command, wait_until
from support.processes.commands import SCRIPT, WORKER, run_command

pytestmark = pytest.mark.usefixtures("demo_model")

SETTINGS = {**WORKER, "LOG_FORMAT": "json", "HF_TOKEN": TOKEN}
# No request is sent to this address, because the startup ends before.
PLATFORM = {"RUNPOD_WEBHOOK_GET_JOB": "http://127.0.0.1:9/job-take/$ID?x=1"}


def objects(text: str) -> list[dict[str, Any]]:
    """Return the lines of a log; assert that each is an object and that none contains a secret."""
    assert TOKEN not in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert all({"time", "level", "message"} <= line.keys() for line in lines)
    return lines


def test_wrong_settings_are_logged_as_one_object() -> None:
    wrong = {"MAX_CONCURRENCY": "0", "DEFAULT_BATCH_SIZE": "x", "MAX_MODEL_LEN": "x"}
    refused = run_command({**SETTINGS, **PLATFORM, **wrong, "ANSWER_FAILED_START": "0"}, SCRIPT)
    assert (refused.returncode, refused.stdout) == (1, "")
    last = objects(refused.stderr)[-1]
    assert last["level"] == "CRITICAL"
    assert last["message"].startswith("3 settings are wrong")
    assert all(f"{name} = " in last["message"] for name in wrong)


@pytest.mark.slow
def test_a_local_job_prints_its_answer_as_with_a_text_log() -> None:
    # A sampled text may be empty or have several lines.
    params = {"structured_outputs": {"choice": ["one line"]}}
    job = {"input": {"prompt": "Hi", "sampling_params": params}}
    ran = run_command(SETTINGS, SCRIPT, "--test_input", json.dumps(job))
    assert ran.returncode == 0, ran.stderr
    chunk, _, joined = ran.stdout.splitlines()
    assert json.loads(chunk)["choices"][0]["tokens"] == [joined]
    assert any(line["message"].startswith("start-up: ") for line in objects(ran.stderr))


@pytest.mark.slow
def test_a_signal_during_startup_leaves_a_log_of_objects_and_no_process(tmp_path: Path) -> None:
    with start_command([SCRIPT], {**SETTINGS, **PLATFORM}, tmp_path / "log") as worker:
        wait_until(lambda: worker.core_pids() or worker.process.poll() is not None)
        worker.process.terminate()
        assert worker.wait_for_exit() == 128 + signal.SIGTERM
        wait_until(lambda: not worker.session_pids())
        objects(worker.output)


@pytest.mark.slow
def test_the_download_process_prints_objects(hub: Hub, tmp_path: Path) -> None:
    ran = run_command(worker_environ(hub, tmp_path, LOG_FORMAT="json"), *PREFETCH)
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
    log = objects(ran.stderr)
    assert "worker.store.download: " in "".join(line["message"] for line in log)
    assert log[-1]["message"].startswith(f"found: {NAME} downloaded")
