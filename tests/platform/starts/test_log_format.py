"""The log in JSON: every line of a start is one object, whoever prints it.

For a worker's whole life see test_whole_worker.py.
"""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from support.hub.downloads import NAME, PREFETCH, TOKEN, environ
from support.hub.server import Hub
from support.processes.background import background, wait_until
from support.processes.commands import SCRIPT, WORKER, run

pytestmark = pytest.mark.usefixtures("demo_model")

SETTINGS = {**WORKER, "LOG_FORMAT": "json", "HF_TOKEN": TOKEN}
# Nothing is taken from there: the start ends before.
PLATFORM = {"RUNPOD_WEBHOOK_GET_JOB": "http://127.0.0.1:9/job-take/$ID?x=1"}


def objects(text: str) -> list[dict[str, Any]]:
    """Return the lines of a log, which must all be objects, and hold no secret."""
    assert TOKEN not in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert all({"time", "level", "message"} <= line.keys() for line in lines)
    return lines


def test_wrong_settings_are_one_object() -> None:
    wrong = {"MAX_CONCURRENCY": "0", "DEFAULT_BATCH_SIZE": "x", "MAX_MODEL_LEN": "x"}
    refused = run({**SETTINGS, **PLATFORM, **wrong, "ANSWER_FAILED_START": "0"}, SCRIPT)
    assert (refused.returncode, refused.stdout) == (1, "")
    last = objects(refused.stderr)[-1]
    assert last["level"] == "CRITICAL"
    assert last["message"].startswith("3 settings are wrong")
    assert all(f"{name} = " in last["message"] for name in wrong)


def test_a_local_run_prints_its_answer_as_in_text() -> None:
    # A sampled text may be empty, or have several lines.
    params = {"structured_outputs": {"choice": ["one line"]}}
    job = {"input": {"prompt": "Hi", "sampling_params": params}}
    ran = run(SETTINGS, SCRIPT, "--test_input", json.dumps(job))
    assert ran.returncode == 0, ran.stderr
    chunk, _, joined = ran.stdout.splitlines()
    assert json.loads(chunk)["choices"][0]["tokens"] == [joined]
    assert any(line["message"].startswith("start-up: ") for line in objects(ran.stderr))


def test_a_signal_during_a_start_leaves_objects_only_and_no_process(tmp_path: Path) -> None:
    with background([SCRIPT], {**SETTINGS, **PLATFORM}, tmp_path / "log") as worker:
        wait_until(lambda: worker.cores() or worker.process.poll() is not None)
        worker.process.terminate()
        assert worker.ended() == 128 + signal.SIGTERM
        wait_until(lambda: not worker.session())
        objects(worker.output)


def test_what_a_downloading_child_prints_is_objects(hub: Hub, tmp_path: Path) -> None:
    ran = run(environ(hub, tmp_path, LOG_FORMAT="json"), *PREFETCH)
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
    log = objects(ran.stderr)
    assert "worker.store.download.meter: " in "".join(line["message"] for line in log)
    assert log[-1]["message"].startswith(f"found: {NAME} downloaded")
