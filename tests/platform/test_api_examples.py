"""The examples that need a worker with all features: against `make endpoint`, and `--serve`."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.models import lora, vision
from support.processes.background import HUNG_S
from support.processes.http_worker import KEY, HttpWorker, http_worker
from support.processes.local_endpoint import LocalEndpoint
from support.tables.api_examples import GUIDE, Example, blocks, examples, prints, scripts


def check(script: Example, environ: Mapping[str, str], folder: Path) -> None:
    """Run a script; assert that it prints what is shown."""
    language = script.job.kind.partition(" ")[0]
    interpreter = [sys.executable] if language == "python" else ["bash", "-euo", "pipefail"]
    ran = subprocess.run(
        [*interpreter, "-c", script.job.text],
        cwd=folder,
        env={"PATH": os.environ["PATH"], **environ},
        capture_output=True,
        text=True,
        timeout=HUNG_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    if script.answer:
        assert prints(script.answer.text.rstrip("\n"), ran.stdout.rstrip("\n")), ran.stdout


def over_http(worker: HttpWorker, key: str = "any") -> dict[str, str]:
    """Return the variables by which clients find a worker."""
    return {
        "OPENAI_BASE_URL": f"{worker.url}/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": worker.url,
        "ANTHROPIC_API_KEY": key,
    }


@pytest.mark.parametrize("example", examples(endpoint=True), ids=lambda example: example.name)
def test_a_job_is_answered_as_it_is_shown(example: Example, make_endpoint: LocalEndpoint) -> None:
    body = json.dumps({"input": example.payload}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{make_endpoint.url}/runsync", body, headers)
    with urllib.request.urlopen(request, timeout=HUNG_S) as answer:
        job = json.load(answer)
    assert job["status"] == "COMPLETED", job
    example.check(job["output"])


@pytest.mark.parametrize("script", scripts("endpoint"), ids=lambda script: script.name)
def test_a_script_prints_what_is_shown(
    script: Example, make_endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    address = "http://127.0.0.1:8000/v2/local"
    (exports,) = [block.text for block in blocks(GUIDE) if f"ENDPOINT={address}" in block.text]
    # As a reader does it: the exports, in a shell, with the port that this endpoint has.
    shell = ["bash", "-euc", exports.replace(address, make_endpoint.url) + "env -0"]
    environ = subprocess.run(shell, capture_output=True, text=True, check=True).stdout
    check(script, dict(one.split("=", 1) for one in environ.split("\0") if one), tmp_path)


@pytest.mark.parametrize("script", scripts("serve"), ids=lambda script: script.name)
def test_a_script_prints_what_is_shown_over_http(
    script: Example, server: HttpWorker, tmp_path: Path
) -> None:
    check(script, over_http(server, KEY), tmp_path)


def test_a_script_shows_images_to_a_model_that_sees(
    worker_environ: dict[str, str], demo_model: Path, tmp_path: Path
) -> None:
    vision.make(tmp_path / "model", demo_model)
    environ = {**worker_environ, "MODEL_NAME": str(tmp_path / "model"), "MAX_MODEL_LEN": "512"}
    with http_worker(environ, tmp_path / "log") as worker:
        (script,) = scripts("sees")
        check(script, over_http(worker), tmp_path)


def test_a_script_calls_an_adapter_by_its_name(
    worker_environ: dict[str, str], demo_model: Path, tmp_path: Path
) -> None:
    lora.make_adapter(tmp_path / "adapters" / "fairy-tales", demo_model)
    environ = {**worker_environ, "ENABLE_LORA": "1", "BASE_PATH": str(tmp_path)}
    with http_worker(environ, tmp_path / "log") as worker:
        (script,) = scripts("adapter")
        check(script, over_http(worker), tmp_path)
