"""Tests of commands as new users and operators type them."""

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.models.damaged import copy_damaged
from support.processes.background import start_command, wait_until
from support.processes.commands import DEMO, HANDLER, SCRIPT, WORKER, run_command

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
JOB = {"input": {"messages": [{"role": "user", "content": "Hi"}]}}

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


@pytest.fixture
def environ_without_chat_template(demo_model: Path, tmp_path: Path) -> dict[str, str]:
    """Return the environment of a worker with a copy of the demo model without a chat template."""
    ignore_template = shutil.ignore_patterns("chat_template.jinja")
    model = Path(shutil.copytree(demo_model, tmp_path / "model", ignore=ignore_template))
    tokenizer: dict[str, Any] = json.loads((model / "tokenizer_config.json").read_text())
    tokenizer.pop("chat_template", None)
    (model / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return {**WORKER, "MODEL_NAME": str(model)}


def test_a_job_without_a_chat_template_exits_with_1_and_names_the_setting(
    environ_without_chat_template: dict[str, str],
) -> None:
    result = run_command(environ_without_chat_template, SCRIPT)
    assert result.returncode == 1
    assert "The job failed: " in result.stderr
    assert "set CUSTOM_CHAT_TEMPLATE" in result.stderr


# settings/test_mistakes.py tests a template in a file.
def test_the_chat_template_of_the_settings_is_used(
    environ_without_chat_template: dict[str, str],
) -> None:
    environ = {**environ_without_chat_template, "CUSTOM_CHAT_TEMPLATE": TEMPLATE}
    result = run_command(environ, SCRIPT, "--test_input", json.dumps(JOB))
    assert result.returncode == 0, result.stderr
    # The template adds no tokens to the message; the model's own template would.
    (count,) = re.findall(r'"input": *(\d+)', result.stdout)
    assert int(count) < 5
