"""The commands that a newcomer and an operator type, as they type them."""

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support.processes.background import Background, background, wait_until
from support.processes.commands import HANDLER, WORKER, ran, run

pytestmark = pytest.mark.usefixtures("demo_model")


def test_make_run_answers_the_test_input_with_text_from_the_engine() -> None:
    made = ran("make run")
    assert made.returncode == 0, made.stderr
    *yields, joined = [line for line in made.stdout.splitlines() if line]
    chunks = [json.loads(line) for line in yields if line.startswith("{")]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert joined == "".join(text for chunk in chunks for text in chunk["choices"][0]["tokens"])
    assert joined.startswith("This worker turns a Hugging Face model into a serverless endpoint.")


def test_a_local_run_of_a_job_that_fails_exits_with_1_and_the_reason() -> None:
    failed = ran("failing job")
    assert failed.returncode == 1
    assert "The job failed: sampling_params: max_tokens must be at least 1" in failed.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"input": {}}', '{"openai_route": "/v1/chat/completions"'),
        ('{"input": {"prompt": "Hi", "strem": true}}', "did you mean 'stream'?"),
        ('{"input": {"prompt"', "broken JSON: Expecting ':' delimiter: line 1 column 20"),
        ('"Hi"', 'it looks like {"input": {"prompt": "Hi"}}'),
    ],
)
def test_a_local_job_that_can_not_work_costs_no_cold_start(text: str, told: str) -> None:
    failed = run(WORKER, *HANDLER, "--test_input", text)
    assert failed.returncode == 1
    assert told in failed.stderr
    assert "Traceback" not in failed.stderr
    assert "start-up: " not in failed.stderr


def test_wrong_settings_are_all_told_in_one_message_without_a_traceback() -> None:
    refused = ran("wrong settings")
    assert refused.returncode == 1
    told = refused.stderr[refused.stderr.index("4 settings are wrong") :]
    named = [line.split()[0] for line in told[: told.index("Beside")].splitlines()[1:]]
    assert named == ["GPU_MEMORY_UTILIZATION", "MAX_MODEL_LEN", "MODEL_NAME", "RAW_OPENAI_OUTPUT"]
    assert "MAX_MODEL_LENGTH is not a setting: did you mean MAX_MODEL_LEN?" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "hf_canary" not in refused.stderr + refused.stdout


@pytest.mark.parametrize("setting", ["ENABLE_AUTO_TOOL_CHOICE", "CUSTOM_CHAT_TEMPLATE"])
def test_settings_that_can_not_work_are_told_without_a_traceback(setting: str) -> None:
    refused = ran(setting)
    assert refused.returncode == 1
    assert f"\n  {setting} = " in refused.stderr
    assert "Traceback" not in refused.stderr


def is_importing(worker: Background) -> bool:
    """Return whether torch has been loaded: vLLM's import, which begins with it, goes on."""
    return "libtorch" in Path(f"/proc/{worker.process.pid}/maps").read_text()


def is_starting_its_engine(worker: Background) -> bool:
    """Return whether the engine's core, a child, has been forked."""
    return "start-up: weights" in worker.output and len(worker.session()) > 1


@pytest.mark.parametrize("moment", [is_importing, is_starting_its_engine])
def test_sigterm_during_a_start_ends_it_at_once(
    moment: Callable[[Background], bool], tmp_path: Path
) -> None:
    environ = {**WORKER, "RUNPOD_WEBHOOK_GET_JOB": "http://127.0.0.1:9/job-take/$ID?x=1"}
    with background(HANDLER, environ, tmp_path / "log") as worker:
        wait_until(lambda: moment(worker))
        worker.process.terminate()
        assert worker.ended() == 128 + signal.SIGTERM
        # Nobody of its session is left, once the kernel has taken the engine's core apart.
        wait_until(lambda: not worker.session())
        assert "start-up: sdk" not in worker.output


def test_a_model_that_vllm_can_not_start_is_told_without_a_traceback() -> None:
    refused = ran("no model")
    assert refused.returncode == 1
    assert re.search(r"^vLLM could not start \S*no-model\S*: ", refused.stderr, re.MULTILINE)
    assert "Traceback" not in refused.stderr


def test_a_model_without_a_chat_template_names_the_setting_that_gives_it_one() -> None:
    without = ran("no template")
    assert without.returncode == 1
    assert "set CUSTOM_CHAT_TEMPLATE" in without.stderr


def test_a_chat_template_inline_and_one_in_a_file_serve_both_paths_alike() -> None:
    raw, openai = ran("a template"), ran("a template in a file")
    assert (raw.returncode, openai.returncode) == (0, 0)
    # The template adds nothing to the one message, the model's own would.
    (in_raw,) = re.findall(r'"input": (\d+)', raw.stdout)
    (in_openai,) = re.findall(r'"prompt_tokens": *(\d+)', openai.stdout)
    assert in_raw == in_openai
    assert int(in_raw) < 5
