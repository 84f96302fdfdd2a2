"""Retries of jobs, and purges of the queue."""

from collections.abc import Awaitable, Callable

import pytest
from support.processes.emulator_client import Client, emulator_client

LONG_S = 600.0

Begin = Callable[[Client], Awaitable[str]]


async def fail(client: Client) -> str:
    job = await client.start({"prompt": "hi"})
    await client.post_chunk(job, "first")
    await client.post_done(job, status="IN_PROGRESS", output="1/2")
    await client.post_done(job, error="boom")
    return job


async def time_out(client: Client) -> str:
    job = await client.start({"prompt": "hi"})
    await client.post_chunk(job, "first")
    client.let_pass(LONG_S)
    assert (await client.wait_ended(job))["status"] == "TIMED_OUT"
    assert await client.get("/job-stop/w") == {"jobsToStop": [job]}
    return job


async def complete(client: Client) -> str:
    job = await client.start()
    await client.post_done(job, output=1)
    return job


async def cancel(client: Client) -> str:
    job = await client.run()
    await client.post(f"/cancel/{job}")
    return job


@pytest.mark.parametrize("end", [fail, time_out])
async def test_a_job_that_failed_runs_again_under_its_id_and_what_it_gave_is_gone(
    end: Begin,
) -> None:
    async with emulator_client(execution_timeout_s=LONG_S) as client:
        job = await end(client)
        queued = {"id": job, "status": "IN_QUEUE"}
        assert await client.request("POST", f"/retry/{job}") == (200, queued)
        assert await client.status(job) == queued
        assert await client.get("/job-take/w") == {"id": job, "input": {"prompt": "hi"}}
        running = await client.status(job)
        assert (running["status"], "output" in running) == ("IN_PROGRESS", False)
        await client.post_chunk(job, "second")
        assert await client.get(f"/stream/{job}") == {
            "status": "IN_PROGRESS",
            "stream": [{"output": "second"}],
        }
        await client.post_done(job, output=["second"])
        report = await client.status(job)
        assert (report["status"], report["output"]) == ("COMPLETED", ["second"])
        assert "error" not in report


@pytest.mark.parametrize(
    ("begin", "status"),
    [
        (Client.run, "IN_QUEUE"),
        (Client.start, "IN_PROGRESS"),
        (complete, "COMPLETED"),
        (cancel, "CANCELLED"),
    ],
)
async def test_only_a_job_that_failed_or_timed_out_is_retried(begin: Begin, status: str) -> None:
    async with emulator_client() as client:
        job = await begin(client)
        before = await client.status(job)
        code, answer = await client.request("POST", f"/retry/{job}")
        assert code == 400
        assert answer["error"].endswith(f"FAILED or TIMED_OUT can be retried, not {status}")
        assert await client.status(job) == before


async def test_a_retried_job_can_fail_and_be_retried_again() -> None:
    async with emulator_client() as client:
        job = await client.start()
        for _ in range(3):
            await client.post_done(job, error="boom")
            assert (await client.status(job))["status"] == "FAILED"
            await client.post(f"/retry/{job}")
            assert (await client.get("/job-take/w"))["id"] == job


async def test_a_purge_cancels_what_waits_and_leaves_the_rest_alone() -> None:
    async with emulator_client() as client:
        completed = await complete(client)
        running = await client.start()
        cancelled = await cancel(client)
        waiting = [await client.run() for _ in range(2)]
        purged = {"removed": 2, "status": "completed"}
        assert await client.request("POST", "/purge-queue") == (200, purged)
        jobs = [completed, running, cancelled, *waiting]
        statuses = [(await client.status(job))["status"] for job in jobs]
        assert statuses == ["COMPLETED", "IN_PROGRESS", "CANCELLED", "CANCELLED", "CANCELLED"]
        assert await client.request("GET", "/job-stop/w") == (204, None)
        assert await client.request("GET", "/job-take/w") == (204, None)
        assert await client.post("/purge-queue") == {"removed": 0, "status": "completed"}
        await client.post_done(running, output=1)
        assert (await client.status(running))["status"] == "COMPLETED"
