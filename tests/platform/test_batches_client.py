"""Batches over plain HTTP with the official client, unchanged: sync and async."""

import json
import time
from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types import Batch
from support.batches import as_text, line
from support.processes.background import HUNG_S
from support.processes.http_worker import HttpWorker

CHAT: Literal["/v1/chat/completions"] = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")
QUESTION: dict[str, Any] = {"messages": [{"role": "user", "content": "What does this worker do?"}]}
BEGINS = "This worker turns a Hugging Face model"
MANY = 50_000


def questions(count: int, **body: Any) -> bytes:
    return as_text(
        line(f"c{index}", **QUESTION, temperature=0, max_tokens=12, **body)
        for index in range(count)
    )


def created(client: OpenAI, content: bytes) -> Batch:
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    return client.batches.create(
        input_file_id=file.id,
        endpoint=CHAT,
        completion_window="24h",
        metadata={"of": "the tests"},
    )


def ended(client: OpenAI, batch: Batch) -> Batch:
    deadline = time.monotonic() + HUNG_S
    while batch.status not in ENDED and time.monotonic() < deadline:
        time.sleep(0.2)
        batch = client.batches.retrieve(batch.id)
    return batch


def texts(content: str) -> dict[str, str]:
    """Return the answers in an output file by custom_id."""
    lines = [json.loads(text) for text in content.splitlines()]
    return {
        one["custom_id"]: one["response"]["body"]["choices"][0]["message"]["content"]
        for one in lines
    }


def test_a_batch_is_uploaded_created_polled_read_and_its_files_deleted(served: OpenAI) -> None:
    batch = created(served, questions(60) + as_text([line("wrong", messages=5)]))
    assert (batch.object, batch.endpoint, batch.metadata) == ("batch", CHAT, {"of": "the tests"})
    batch = ended(served, batch)
    assert batch.status == "completed"
    counts = batch.request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (61, 60, 1)
    assert batch.usage is not None
    assert batch.usage.output_tokens == 60 * 12
    assert batch.output_file_id is not None
    assert batch.error_file_id is not None
    found = texts(served.files.content(batch.output_file_id).text)
    assert list(found) == [f"c{index}" for index in range(60)]
    assert all(text.startswith(BEGINS) for text in found.values())
    wrong = json.loads(served.files.content(batch.error_file_id).text)
    assert (wrong["custom_id"], wrong["response"]["status_code"]) == ("wrong", 400)
    for id in (batch.output_file_id, batch.error_file_id, batch.input_file_id):
        assert served.files.delete(id).deleted
    assert served.batches.retrieve(batch.id) == batch


async def test_the_async_client_does_the_same(async_served: AsyncOpenAI) -> None:
    client = async_served
    file = await client.files.create(file=("in.jsonl", questions(5)), purpose="batch")
    batch = await client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h"
    )
    deadline = time.monotonic() + HUNG_S
    while batch.status not in ENDED and time.monotonic() < deadline:
        batch = await client.batches.retrieve(batch.id)
    assert batch.status == "completed"
    assert batch.output_file_id is not None
    content = await client.files.content(batch.output_file_id)
    assert len(texts(content.text)) == 5
    assert batch.id in [one.id async for one in client.batches.list(limit=2)]


def test_the_client_pages_through_all_batches(served: OpenAI) -> None:
    made = [created(served, questions(1)) for _ in range(5)]
    first = served.batches.list(limit=2)
    assert (len(first.data), first.has_more) == (2, True)
    found = [one.id for one in served.batches.list(limit=2)]
    assert {one.id for one in made} <= set(found)
    assert len(set(found)) == len(found)
    for batch in made:
        assert ended(served, batch).status == "completed"


def test_what_is_wrong_is_told_by_line_and_refusals_are_errors_that_the_client_knows(
    served: OpenAI,
) -> None:
    batch = ended(served, created(served, questions(2) + b"\n{'a': 1}\n"))
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    (mistake,) = batch.errors.data
    assert (mistake.code, mistake.line) == ("invalid_json_line", 4)
    with pytest.raises(openai.NotFoundError):
        served.batches.retrieve("batch_x")
    with pytest.raises(openai.BadRequestError, match="endpoint"):
        served.batches.create(
            input_file_id=batch.input_file_id or "",
            endpoint="/v1/moderations",
            completion_window="24h",
        )
    with pytest.raises(openai.ConflictError):
        served.batches.cancel(batch.id)
    with pytest.raises(openai.AuthenticationError):
        served.with_options(api_key="sk-other").batches.list()


def test_a_batch_of_50000_lines_begins_soon_is_cancelled_and_keeps_what_was_answered(
    served: OpenAI, server: HttpWorker
) -> None:
    before = server.peak(begin=True)
    batch = created(served, questions(MANY, max_completion_tokens=12))
    deadline = time.monotonic() + HUNG_S
    while batch.request_counts is None or not batch.request_counts.completed:
        assert batch.status in ("validating", "in_progress"), batch.errors
        assert time.monotonic() < deadline
        time.sleep(0.2)
        batch = served.batches.retrieve(batch.id)
    assert batch.request_counts.total == MANY
    with pytest.raises(openai.ConflictError):
        served.files.delete(batch.input_file_id)
    # Others are answered meanwhile.
    alone = served.chat.completions.create(model="demo", **QUESTION, max_tokens=12, temperature=0)
    cancelling = served.batches.cancel(batch.id)
    assert cancelling.status in ("cancelling", "cancelled")
    batch = ended(served, batch)
    assert (batch.status, batch.output_file_id is None) == ("cancelled", False)
    output = texts(served.files.content(batch.output_file_id or "").text)
    errors = served.files.content(batch.error_file_id or "").text.splitlines()
    assert len(output) + len(errors) == MANY
    assert set(output.values()) == {alone.choices[0].message.content}
    assert server.peak() - before < 100_000_000
