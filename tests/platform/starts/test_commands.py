"""The commands that a newcomer and an operator type, as they type them."""

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.processes.background import background, wait_until
from support.processes.commands import HANDLER, SCRIPT, WORKER, run

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
JOB = {"input": {"messages": [{"role": "user", "content": "Hi"}]}}

pytestmark = pytest.mark.usefixtures("demo_model")


def test_a_local_job_that_can_not_work_costs_no_cold_start() -> None:
    # What else can't work unit/test_local.py shows.
    failed = run(WORKER, *HANDLER, "--test_input", '{"input": {"prompt": "Hi", "strem": true}}')
    assert failed.returncode == 1
    assert "did you mean 'stream'?" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert "start-up: " not in failed.stderr


# test_log_format.py ends a start later, while the engine begins.
def test_sigterm_while_vllm_is_imported_ends_the_start_at_once(tmp_path: Path) -> None:
    environ = {**WORKER, "RUNPOD_WEBHOOK_GET_JOB": "http://127.0.0.1:9/job-take/$ID?x=1"}
    with background(HANDLER, environ, tmp_path / "log") as worker:
        process = psutil.Process(worker.process.pid)
        # The import begins with torch's.
        wait_until(lambda: any("libtorch" in loaded.path for loaded in process.memory_maps()))
        worker.process.terminate()
        assert worker.ended() == 128 + signal.SIGTERM
        wait_until(lambda: not worker.session())
        assert "start-up: sdk" not in worker.output


def test_a_model_that_vllm_can_not_start_is_reported_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "no-model").mkdir()
    refused = run({**WORKER, "MODEL_NAME": str(tmp_path / "no-model")}, SCRIPT)
    assert refused.returncode == 1
    assert re.search(r"^vLLM could not start \S*no-model\S*: ", refused.stderr, re.MULTILINE)
    assert "Traceback" not in refused.stderr


@pytest.fixture
def without_chat_template(demo_model: Path, tmp_path: Path) -> dict[str, str]:
    """The environment of a worker on a copy of the demo model that has no chat template."""
    left_out = shutil.ignore_patterns("chat_template.jinja")
    model = Path(shutil.copytree(demo_model, tmp_path / "model", ignore=left_out))
    tokenizer: dict[str, Any] = json.loads((model / "tokenizer_config.json").read_text())
    tokenizer.pop("chat_template", None)
    (model / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return {**WORKER, "MODEL_NAME": str(model)}


def test_a_job_that_fails_exits_with_1_and_names_the_setting_that_gives_a_chat_template(
    without_chat_template: dict[str, str],
) -> None:
    failed = run(without_chat_template, SCRIPT)
    assert failed.returncode == 1
    assert "The job failed: " in failed.stderr
    assert "set CUSTOM_CHAT_TEMPLATE" in failed.stderr


# One in a file: settings/test_mistakes.py.
def test_a_chat_template_of_the_settings_is_used(without_chat_template: dict[str, str]) -> None:
    environ = {**without_chat_template, "CUSTOM_CHAT_TEMPLATE": TEMPLATE}
    answered = run(environ, SCRIPT, "--test_input", json.dumps(JOB))
    assert answered.returncode == 0, answered.stderr
    # The template adds nothing to the one message; the model's own would.
    (count,) = re.findall(r'"input": *(\d+)', answered.stdout)
    assert int(count) < 5
