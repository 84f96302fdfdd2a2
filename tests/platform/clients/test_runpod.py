"""Tests with the unchanged `runpod` package, the printed examples and `make endpoint`."""

import os
import subprocess
from typing import Any

import pytest
import runpod
from support.engine.requests import ENDLESS
from support.processes.servers import LocalEndpoint

ANSWER = "This worker turns a Hugging Face model into a serverless endpoint."
RAW: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What does this worker do?"}],
    "sampling_params": {"temperature": 0, "max_tokens": 200},
    "stream": True,
}


def text(chunks: list[dict[str, Any]]) -> str:
    return "".join(token for chunk in chunks for token in chunk["choices"][0]["tokens"])


def test_the_printed_examples_work_when_pasted_into_a_shell(make_endpoint: LocalEndpoint) -> None:
    examples = make_endpoint.examples
    assert examples.count("\n# ") == 4
    environ = {name: os.environ[name] for name in ("PATH", "HOME")}
    pasted = subprocess.run(
        ["bash", "-e"], input=examples, env=environ, capture_output=True, text=True, check=False
    )
    assert (pasted.returncode, pasted.stderr) == (0, "")
    # The texts are sampled. curl prints no line feed after the response to the raw job.
    raw, rest = pasted.stdout.split("}data: ", 1)
    _, texts = rest.split("data: [DONE]\n\n")
    streamed_text, outputs = texts.rstrip().rsplit("\n", 1)
    assert '"status": "COMPLETED"' in raw
    assert streamed_text.strip()
    assert outputs.startswith("[{'choices': ")


@pytest.fixture
def runpod_endpoint(
    make_endpoint: LocalEndpoint, monkeypatch: pytest.MonkeyPatch
) -> runpod.Endpoint:
    monkeypatch.setattr(runpod, "endpoint_url_base", make_endpoint.api_url)
    return runpod.Endpoint("local", api_key="any")


def test_the_client_runs_a_job_and_reads_its_stream_status_and_output(
    runpod_endpoint: runpod.Endpoint,
) -> None:
    job = runpod_endpoint.run(RAW)
    streamed = list(job.stream())
    assert text(streamed).startswith(ANSWER)
    assert job.status() == "COMPLETED"
    assert job.output() == streamed
    assert text(runpod_endpoint.run_sync(RAW)).startswith(ANSWER)


def test_the_client_cancels_a_job_reads_the_health_and_purges_the_queue(
    runpod_endpoint: runpod.Endpoint,
) -> None:
    job = runpod_endpoint.run({"prompt": "Hi", "sampling_params": ENDLESS})
    assert job.cancel()["status"] == "CANCELLED"
    assert job.status() == "CANCELLED"
    health = runpod_endpoint.health()["workers"]
    assert health["idle"] + health["running"] == 1
    assert runpod_endpoint.purge_queue() == {"removed": 0, "status": "completed"}
