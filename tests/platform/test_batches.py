"""Batches on a queue endpoint: created through its gateway or in a job, and run by jobs."""

import json
import time
import urllib.request
from typing import Any, Literal

import openai
from openai.types import Batch
from support.batches import as_text, line
from support.processes.background import HUNG_S
from support.processes.local_endpoint import LocalEndpoint

CHAT: Literal["/v1/chat/completions"] = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")
QUESTION: dict[str, Any] = {"messages": [{"role": "user", "content": "What does this worker do?"}]}
LINES = [line(f"c{index}", **QUESTION, temperature=0, max_tokens=8) for index in range(120)]


def post(endpoint: LocalEndpoint, path: str, payload: dict[str, Any] | None = None) -> Any:
    data = None if payload is None else json.dumps({"input": payload}).encode()
    request = urllib.request.Request(
        f"{endpoint.url}/{path}", data, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=HUNG_S) as answer:
        return json.load(answer)


def run(endpoint: LocalEndpoint, payload: dict[str, Any]) -> Any:
    """Run a job, and return its one yield."""
    report = post(endpoint, "runsync", payload)
    assert report["status"] == "COMPLETED", report
    (found,) = report["output"]
    return found


def content(endpoint: LocalEndpoint, file_id: str) -> list[dict[str, Any]]:
    report = post(endpoint, "runsync", {"route": f"/v1/files/{file_id}/content", "method": "GET"})
    return [json.loads(one) for one in "".join(report["output"]).splitlines()]


def ended(client: openai.OpenAI, batch_id: str) -> Batch:
    deadline = time.monotonic() + HUNG_S
    while time.monotonic() < deadline:
        batch = client.batches.retrieve(batch_id)
        if batch.status in ENDED:
            return batch
        time.sleep(0.2)
    raise AssertionError(f"the batch {batch_id} does not end")


def test_a_batch_that_is_created_through_the_gateway_is_run_by_a_job_that_the_worker_sends(
    make_endpoint: LocalEndpoint, client: openai.OpenAI
) -> None:
    upload = {"filename": "in.jsonl", "purpose": "batch", "content": as_text(LINES).decode()}
    file = run(make_endpoint, {"route": "/v1/files", "method": "POST", "body": upload})
    created = client.batches.create(
        input_file_id=file["id"],
        endpoint=CHAT,
        completion_window="24h",
        metadata={"for": "test"},
    )
    assert created.model_extra is not None
    assert "run_with" not in created.model_extra
    batch = ended(client, created.id)
    assert batch.status == "completed"
    assert batch.metadata == {"for": "test"}
    assert batch.request_counts
    assert batch.request_counts.completed == len(LINES)
    assert batch.usage
    assert batch.usage.output_tokens == 8 * len(LINES)
    assert batch.output_file_id
    output = content(make_endpoint, batch.output_file_id)
    assert [one["custom_id"] for one in output] == [one["custom_id"] for one in LINES]
    texts = {one["response"]["body"]["choices"][0]["message"]["content"] for one in output}
    assert len(texts) == 1
    assert created.id in [one.id for one in client.batches.list()]


def test_a_job_creates_a_batch_and_runs_it_with_its_progress_in_the_status(
    make_endpoint: LocalEndpoint,
) -> None:
    lines = [
        line(f"p{index}", "/v1/completions", prompt="Hello", max_tokens=200, ignore_eos=True)
        for index in range(400)
    ]
    spec = {"batch": {"requests": lines, "endpoint": "/v1/completions"}}
    job = post(make_endpoint, "run", spec)["id"]
    seen: list[Any] = []
    while (report := post(make_endpoint, f"status/{job}"))["status"] not in (
        "COMPLETED",
        "FAILED",
    ):
        if (progress := report.get("output")) and progress not in seen:
            seen.append(progress)
        time.sleep(0.2)
    (found,) = report["output"]
    assert found["batch"]["status"] == "completed"
    assert found["batch"]["request_counts"] == {"total": 400, "completed": 400, "failed": 0}
    done = [progress["done"] for progress in seen if progress["total"] == 400]
    assert done
    assert done == sorted(done)
    # The same batch: a retry of the platform has the same job.
    assert run(make_endpoint, {"batch": {"id": found["batch"]["id"]}}) == found
