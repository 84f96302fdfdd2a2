"""The commands that a newcomer and an operator type, as they type them."""

import json
import re
import signal
import subprocess
import time

import pytest
from support import ROOT
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
    begun = time.monotonic()
    failed = run(WORKER, *HANDLER, "--test_input", text)
    assert failed.returncode == 1
    assert told in failed.stderr
    assert "Traceback" not in failed.stderr
    assert time.monotonic() - begun < 10  # generous: half a second here, a cold start takes longer


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


def list_session(leader: int) -> list[str]:
    """The processes of a session that still run, zombies left out."""
    listed = subprocess.run(
        ["ps", "-o", "stat=,pid=", "-g", str(leader)], capture_output=True, text=True, check=False
    )
    return [line for line in listed.stdout.splitlines() if not line.startswith("Z")]


@pytest.mark.parametrize("seconds", [1, 8])
def test_sigterm_during_a_start_ends_it_at_once(seconds: float) -> None:
    environ = {**WORKER, "RUNPOD_WEBHOOK_GET_JOB": "http://127.0.0.1:9/job-take/$ID?x=1"}
    with subprocess.Popen(
        HANDLER, env=environ, cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        time.sleep(seconds)
        process.terminate()
        assert process.wait(timeout=5) == 128 + signal.SIGTERM
        # Nobody of its session is left, once the kernel has taken the engine's core apart.
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline and list_session(process.pid):
            time.sleep(0.1)
        assert list_session(process.pid) == []


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
