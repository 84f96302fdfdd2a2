"""Tests of batches and files with the official client, with `--serve` and with a queue endpoint."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from openai.types import Batch
from support.batches import line, to_jsonl
from support.engine.requests import ENDLESS
from support.processes.background import wait_until
from support.processes.servers import LocalEndpoint, ServerProcess
from support.volume import has_expired_file

CHAT: Literal["/v1/chat/completions"] = "/v1/chat/completions"
FINAL_STATUSES = ("completed", "failed", "expired", "cancelled")
QUESTION: dict[str, Any] = {"messages": [{"role": "user", "content": "What does this worker do?"}]}
ANSWER_START = "This worker turns a Hugging Face model"
MANY = 50_000


def questions(count: int, **body: Any) -> list[dict[str, Any]]:
    body = {**QUESTION, "temperature": 0, "max_tokens": 12, **body}
    return [line(f"c{index}", **body) for index in range(count)]


def create_batch(client: OpenAI, lines: Iterable[dict[str, Any]]) -> Batch:
    file = client.files.create(file=("in.jsonl", to_jsonl(lines)), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"of": "the tests"}
    )


def wait_for_batch(client: OpenAI, batch: Batch) -> Batch:
    wait_until(lambda: client.batches.retrieve(batch.id).status in FINAL_STATUSES)
    return client.batches.retrieve(batch.id)


def texts(lines: Iterable[str]) -> dict[str, str]:
    """Return the answers in an output file by custom_id."""
    answers = map(json.loads, lines)
    return {
        one["custom_id"]: one["response"]["body"]["choices"][0]["message"]["content"]
        for one in answers
    }


def test_a_client_creates_a_batch_polls_it_reads_its_output_and_deletes_its_files(
    serve_client: OpenAI,
) -> None:
    batch = create_batch(serve_client, [*questions(60), line("wrong\u2028", messages=5)])
    assert (batch.object, batch.endpoint, batch.metadata) == ("batch", CHAT, {"of": "the tests"})
    batch = wait_for_batch(serve_client, batch)
    counts, usage = batch.request_counts, batch.usage
    assert counts
    assert (batch.status, counts.total, counts.completed, counts.failed) == ("completed", 61, 60, 1)
    assert usage
    assert usage.output_tokens == 60 * 12
    assert batch.output_file_id
    assert batch.error_file_id
    found = texts(serve_client.files.content(batch.output_file_id).text.splitlines())
    assert list(found) == [f"c{index}" for index in range(60)]
    assert all(text.startswith(ANSWER_START) for text in found.values())
    # JSON allows U+2028 in strings, and this client ends lines at it.
    (error,) = serve_client.files.content(batch.error_file_id).iter_lines()
    wrong = json.loads(error)
    assert (wrong["custom_id"], wrong["response"]["status_code"]) == ("wrong\u2028", 400)
    for id in (batch.output_file_id, batch.error_file_id, batch.input_file_id):
        assert serve_client.files.delete(id).deleted
    assert serve_client.batches.retrieve(batch.id) == batch


# The memory usage depends on the machine's allocator.
@pytest.mark.slow
def test_a_cancelled_batch_of_50000_lines_returns_its_answers_and_needs_little_memory(
    serve_client: OpenAI, server: ServerProcess
) -> None:
    before = server.peak(begin=True)
    batch = create_batch(serve_client, questions(MANY, max_completion_tokens=12))

    def has_begun() -> bool:
        now = serve_client.batches.retrieve(batch.id)
        assert now.status in ("validating", "in_progress"), now.errors
        return bool(now.request_counts and now.request_counts.completed)

    wait_until(has_begun)
    with pytest.raises(openai.ConflictError):
        serve_client.files.delete(batch.input_file_id)
    # Other requests are answered meanwhile.
    create = serve_client.chat.completions.create
    alone = create(model="demo", **QUESTION, max_tokens=12, temperature=0)
    assert serve_client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    batch = wait_for_batch(serve_client, batch)
    assert batch.request_counts
    assert (batch.status, batch.request_counts.total) == ("cancelled", MANY)
    assert batch.output_file_id
    output = texts(serve_client.files.content(batch.output_file_id).text.splitlines())
    errors = serve_client.files.content(batch.error_file_id or "").text.splitlines()
    assert len(output) + len(errors) == MANY
    assert set(output.values()) == {alone.choices[0].message.content}
    assert server.peak() - before < 100_000_000


def test_a_batch_created_through_the_gateway_runs_in_a_job_that_the_worker_submits(
    make_endpoint: LocalEndpoint, openai_client: OpenAI
) -> None:
    lines = questions(120)
    upload = {"filename": "in.jsonl", "purpose": "batch", "content": to_jsonl(lines).decode()}
    (file,) = make_endpoint.run({"route": "/v1/files", "method": "POST", "body": upload})
    batch = openai_client.batches.create(
        input_file_id=file["id"], endpoint=CHAT, completion_window="24h"
    )
    assert "run_with" not in (batch.model_extra or {})
    batch = wait_for_batch(openai_client, batch)
    assert batch.request_counts
    assert (batch.status, batch.request_counts.completed) == ("completed", len(lines))
    route = f"/v1/files/{batch.output_file_id}/content"
    output = texts("".join(make_endpoint.run({"route": route, "method": "GET"})).splitlines())
    assert [*output] == [one["custom_id"] for one in lines]
    assert len({*output.values()}) == 1
    assert batch.id in [one.id for one in openai_client.batches.list()]


def test_the_status_of_a_job_includes_the_progress_of_its_batch(
    make_endpoint: LocalEndpoint, openai_client: OpenAI
) -> None:
    endpoint, endless = "/v1/completions", {"prompt": "Hi", **ENDLESS}
    lines = [line("short", endpoint, prompt="Hi", max_tokens=1)]
    # Each request stops at the end of the context, so several of them take long enough.
    lines += [line(f"p{index}", endpoint, **endless) for index in range(6)]
    spec = {"batch": {"requests": lines, "endpoint": endpoint}}
    job = make_endpoint.call("run", {"input": spec})["id"]

    def progress() -> Any:
        return make_endpoint.call(f"status/{job}").get("output") or {}

    wait_until(lambda: progress().get("done", 0) > 0)
    assert progress()["total"] == len(lines)
    running = next(one for one in openai_client.batches.list() if one.status == "in_progress")
    # The gateway does not forward a POST without a body.
    make_endpoint.run({"route": f"/v1/batches/{running.id}/cancel", "method": "POST"})
    assert wait_for_batch(openai_client, running).status == "cancelled"


# Files:

MEGABYTE = 1_000_000
LARGE = 200 * MEGABYTE
# Maximum growth of the server's memory for a file of that size, in bytes.
GROWTH = 60 * MEGABYTE


def test_a_worker_deletes_expired_files_after_its_startup(
    server: ServerProcess, make_endpoint: LocalEndpoint
) -> None:
    volumes = [running.log.parent / "volume" for running in (server, make_endpoint)]
    wait_until(lambda: not any(map(has_expired_file, volumes)))


# The memory usage depends on the machine's allocator.
@pytest.mark.slow
def test_a_large_file_is_transferred_with_little_memory(
    serve_client: OpenAI, server: ServerProcess, tmp_path: Path
) -> None:
    # A sparse file, which uses no disk space.
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", LARGE)
    before = server.peak(begin=True)
    file = serve_client.files.create(file=tmp_path / "large", purpose="batch")
    assert file.bytes == LARGE
    with serve_client.files.with_streaming_response.content(file.id) as response:
        assert sum(map(len, response.iter_bytes())) == LARGE
    assert server.peak() - before < GROWTH
    serve_client.files.delete(file.id)
