"""The platform's limits: the largest size passes, one byte more is refused."""

import asyncio
import io
from typing import Any

import pytest
from support.processes.emulator_client import Client, emulator_client

MEGABYTE = 1_000_000
JOB, RESULT = '{"input": "%s"}', '{"output": "%s"}'
CHUNK = RESULT  # the size of the yield is that of its value, quotes included

REQUESTS = [
    pytest.param("/run", 10 * MEGABYTE, id="run"),
    pytest.param("/runsync", 20 * MEGABYTE, id="runsync"),
    pytest.param("/openai/v1/completions", 20 * MEGABYTE, id="openai"),
]


def padded(template: str, size: int) -> bytes:
    """Return a body of `size` bytes."""
    return (template % ("x" * (size - len(template) + 2))).encode()


async def send(client: Client, path: str, body: bytes) -> tuple[int, Any]:
    return await client.request("POST", path, data=io.BytesIO(body))


async def serve_one(client: Client) -> None:
    """Act as a worker: answer a job with the length of its input."""
    job = await client.get("/job-take/w")
    await client.post_done(job["id"], output=len(str(job["input"])))


@pytest.mark.parametrize(("path", "limit"), REQUESTS)
async def test_a_request_of_the_largest_size_is_served(path: str, limit: int) -> None:
    async with emulator_client(take_poll_s=10) as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(serve_one(client))
        body = padded(JOB, limit)
        assert len(body) == limit
        status, answer = await send(client, path, body)
        if path == "/run":
            answer = (await client.wait_ended(answer["id"]))["output"]
        elif path == "/runsync":
            answer = answer["output"]
        assert status == 200
        assert limit - 20 < answer < limit + 100


@pytest.mark.parametrize("oversize_status", [400, 413])
@pytest.mark.parametrize(("path", "limit"), REQUESTS)
async def test_a_request_of_one_byte_more_is_refused_with_the_status_that_was_chosen(
    path: str, limit: int, oversize_status: int
) -> None:
    async with emulator_client(oversize_status=oversize_status) as client:
        body = padded(JOB, limit + 1)
        status, answer = await send(client, path, body)
        assert status == oversize_status
        assert f"{limit + 1:,} bytes, and {limit:,} is the most" in answer["error"]
        assert await client.get("/control/jobs") == {"jobs": []}


async def test_the_default_status_of_a_request_that_is_too_large_is_400() -> None:
    async with emulator_client() as client:
        assert client.emulator.options.oversize_status == 400


async def chunk_sizes(client: Client, job: str) -> list[Any]:
    timings = await client.get(f"/control/jobs/{job}")
    return [chunk["bytes"] for chunk in timings["chunks"]]


async def test_a_chunk_of_the_largest_size_passes_and_of_one_byte_more_is_refused_and_absent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with emulator_client(oversize_status=413) as client:
        job = await client.start()
        path = f"/job-stream/w/{job}"
        wrapper = len('{"output": }')
        largest, larger = (padded(CHUNK, wrapper + MEGABYTE + extra) for extra in (0, 1))
        assert await send(client, path, largest) == (200, {})
        status, answer = await send(client, path, larger)
        assert (status, "is the most" in answer["error"]) == (400, True)
        assert f"a worker's /v2/local{path} was refused" in caplog.text
        assert await chunk_sizes(client, job) == [len(largest)]
        (chunk,) = (await client.get(f"/stream/{job}"))["stream"]
        assert len(chunk["output"]) == MEGABYTE - len('""')


async def test_a_result_of_the_largest_size_passes() -> None:
    async with emulator_client() as client:
        job = await client.start()
        body = padded(RESULT, 20 * MEGABYTE)
        assert await send(client, f"/job-done/w/{job}", body) == (200, {})
        report = await client.status(job)
        assert report["status"] == "COMPLETED"
        assert len(report["output"]) > 20 * MEGABYTE - 20


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(20 * MEGABYTE + 1, id="one byte more"),
        pytest.param(64 * MEGABYTE + 1, id="much more"),
    ],
)
async def test_a_result_that_is_too_large_is_refused_and_its_job_completed_without_one(
    caplog: pytest.LogCaptureFixture, size: int
) -> None:
    async with emulator_client(oversize_status=413) as client:
        job = await client.start()
        path = f"/job-done/w/{job}"
        status, answer = await send(client, path, padded(RESULT, size))
        assert (status, "error" in answer) == (400, True)
        assert f"a worker's /v2/local{path} was refused" in caplog.text
        report = await client.status(job)
        assert (report["status"], "output" in report) == ("COMPLETED", False)
