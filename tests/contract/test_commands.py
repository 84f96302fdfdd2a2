"""The commands that a newcomer and an operator type, as they type them."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
HANDLER = [sys.executable, "-u", "src/handler.py"]


def run(
    environ: dict[str, str], *command: str, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environ, cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


def test_make_run_answers_the_test_input_with_text_from_the_engine(demo_model: Path) -> None:
    environ = {name: os.environ[name] for name in ("PATH", "HOME")}
    ran = run(environ, "make", "run")
    assert ran.returncode == 0, ran.stderr
    *yields, joined = [line for line in ran.stdout.splitlines() if line]
    chunks = [json.loads(line) for line in yields if line.startswith("{")]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert joined == "".join(text for chunk in chunks for text in chunk["choices"][0]["tokens"])
    assert joined.startswith("This worker turns a Hugging Face model into a serverless endpoint.")


def test_a_local_run_of_a_job_that_fails_exits_with_1_and_the_reason(
    worker_environ: dict[str, str],
) -> None:
    job = {"input": {"prompt": "Hi", "sampling_params": {"max_tokens": -1}}}
    ran = run(worker_environ, *HANDLER, "--test_input", json.dumps(job))
    assert ran.returncode == 1
    assert "The job failed: sampling_params: max_tokens must be at least 1" in ran.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"input": {}}', '{"openai_route": "/v1/chat/completions"'),
        ('{"input": {"prompt": "Hi", "strem": true}}', "did you mean 'stream'?"),
        ('{"input": {"prompt"', "broken JSON: Expecting ':' delimiter: line 1 column 20"),
        ('"Hi"', 'it looks like {"input": {"prompt": "Hi"}}'),
    ],
)
def test_a_local_job_that_can_not_work_costs_no_cold_start(
    worker_environ: dict[str, str], text: str, told: str
) -> None:
    begun = time.monotonic()
    ran = run(worker_environ, *HANDLER, "--test_input", text)
    assert ran.returncode == 1
    assert told in ran.stderr
    assert "Traceback" not in ran.stderr
    assert time.monotonic() - begun < 10  # generous: half a second here, a cold start takes longer


def test_wrong_settings_are_all_told_in_one_message_without_a_traceback() -> None:
    environ = {
        "PATH": os.environ["PATH"],
        "MAX_MODEL_LEN": "abc",
        "GPU_MEMORY_UTILIZATION": "2",
        "RAW_OPENAI_OUTPUT": "2",
        "HF_TOKEN": "hf_canary",
        "MAX_MODEL_LENGTH": "8",
    }
    ran = run(environ, *HANDLER)
    assert ran.returncode == 1
    told = ran.stderr[ran.stderr.index("4 settings are wrong") :].splitlines()
    named = [line.split()[0] for line in told[1:]]
    assert named == ["GPU_MEMORY_UTILIZATION", "MAX_MODEL_LEN", "MODEL_NAME", "RAW_OPENAI_OUTPUT"]
    assert "MAX_MODEL_LENGTH is not a setting: did you mean MAX_MODEL_LEN?" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert "hf_canary" not in ran.stderr + ran.stdout


@pytest.mark.parametrize(
    ("setting", "value"),
    [("ENABLE_AUTO_TOOL_CHOICE", "1"), ("CUSTOM_CHAT_TEMPLATE", "/no/such/file.jinja")],
)
def test_settings_that_vllm_refuses_together_are_told_without_a_traceback(
    worker_environ: dict[str, str], setting: str, value: str
) -> None:
    ran = run({**worker_environ, setting: value}, *HANDLER)
    assert ran.returncode == 1
    assert "vLLM refuses the settings taken together: " in ran.stderr
    assert "Traceback" not in ran.stderr


def list_session(leader: int) -> list[str]:
    """The processes of a session that still run, zombies left out."""
    listed = subprocess.run(
        ["ps", "-o", "stat=,pid=", "-g", str(leader)], capture_output=True, text=True, check=False
    )
    return [line for line in listed.stdout.splitlines() if not line.startswith("Z")]


@pytest.mark.parametrize("seconds", [1, 8])
def test_sigterm_during_a_start_ends_it_at_once(
    worker_environ: dict[str, str], seconds: float
) -> None:
    environ = {**worker_environ, "RUNPOD_WEBHOOK_GET_JOB": "http://127.0.0.1:9/job-take/$ID?x=1"}
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


def test_a_model_that_vllm_can_not_start_is_told_without_a_traceback(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    ran = run({**worker_environ, "MODEL_NAME": str(tmp_path)}, *HANDLER)
    assert ran.returncode == 1
    assert f"vLLM could not start {tmp_path}: " in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_model_without_a_chat_template_names_the_setting_that_gives_it_one(
    worker_environ: dict[str, str], demo_model: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in demo_model.iterdir():
        if file.name != "chat_template.jinja":
            (bare / file.name).symlink_to(file)
    config = bare / "tokenizer_config.json"
    tokenizer: dict[str, Any] = json.loads(config.read_text())
    tokenizer.pop("chat_template", None)
    config.unlink()
    config.write_text(json.dumps(tokenizer))
    environ = {**worker_environ, "MODEL_NAME": str(bare)}
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with ThreadPoolExecutor() as threads:
        without, answered = threads.map(
            lambda given: run(environ | given, *HANDLER), ({}, {"CUSTOM_CHAT_TEMPLATE": template})
        )
    assert without.returncode == 1
    assert "set CUSTOM_CHAT_TEMPLATE" in without.stderr
    assert answered.returncode == 0
