"""An endpoint that is shutting down, and workers that are gone."""

import asyncio
from typing import Any

import pytest
from support.processes.emulator_client import Client, emulator_client

from emulator import LostAs


async def start_polls(client: Client, *paths: str) -> list[asyncio.Task[Any]]:
    """Start polls, each of another worker; return them when the emulator holds them all."""
    polls = [asyncio.create_task(client.request("GET", path)) for path in paths]
    workers = client.emulator.queue.workers
    await client.emulator.queue.arrived.wait_for(lambda: len(workers) == len(paths), 60)
    await asyncio.sleep(0.02)
    assert not any(poll.done() for poll in polls)
    return polls


async def test_closing_releases_every_held_poll_at_once_without_a_job() -> None:
    async with emulator_client(take_poll_s=600) as client:
        polls = await start_polls(
            client, "/job-take/a", "/job-take-batch/b?batch_size=2", "/job-stop/c"
        )
        client.emulator.queue.close()
        async with asyncio.timeout(60):
            assert await asyncio.gather(*polls) == [(204, None)] * 3


async def test_a_closed_endpoint_hands_out_nothing_and_does_not_hold_polls_for_long() -> None:
    async with emulator_client(take_poll_s=600) as client:
        job = await client.run()
        client.emulator.queue.close()
        async with asyncio.timeout(60):
            paths = ("/job-take/a", "/job-take-batch/b?batch_size=2", "/job-stop/c")
            polls = [client.request("GET", path) for path in paths]
            assert await asyncio.gather(*polls) == [(204, None)] * 3
        # Its caller need not wait for a job that no worker will take.
        assert (await client.status(job))["status"] == "CANCELLED"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/run"),
        ("POST", "/runsync"),
        ("POST", "/openai/v1/completions"),
        ("GET", "/openai/v1/models"),
    ],
)
async def test_a_closed_endpoint_refuses_new_jobs(method: str, path: str) -> None:
    async with emulator_client() as client:
        client.emulator.queue.close()
        status, answer = await client.request(method, path, json={"input": 1})
        assert status == 503
        assert answer["error"].endswith("the endpoint is shutting down")
        assert await client.get("/control/jobs") == {"jobs": []}


async def test_a_closed_endpoint_refuses_a_retry() -> None:
    async with emulator_client() as client:
        job = await client.start()
        await client.post_done(job, error="boom")
        client.emulator.queue.close()
        status, _ = await client.request("POST", f"/retry/{job}")
        assert (status, (await client.status(job))["status"]) == (503, "FAILED")


async def test_running_jobs_can_still_end_and_be_cancelled_on_a_closed_endpoint() -> None:
    async with emulator_client(take_poll_s=600) as client:
        ends, is_cancelled = [await client.start() for _ in range(2)]
        waiting = asyncio.create_task(client.post("/runsync", {"input": 1}))
        synced = (await client.get("/job-take/w"))["id"]
        client.emulator.queue.close()
        await client.post_chunk(ends, "a")
        await client.post_done(ends, output=["a"])
        report = await client.status(ends)
        assert (report["status"], report["output"]) == ("COMPLETED", ["a"])
        await client.post(f"/cancel/{is_cancelled}")
        assert await client.get("/job-stop/w") == {"jobsToStop": [is_cancelled]}
        await client.post_done(synced, output=1)
        assert (await waiting)["status"] == "COMPLETED"


async def start_jobs(client: Client) -> list[str]:
    """Start two jobs with a chunk each on worker w, and one on another; queue a fourth."""
    jobs = [await client.start() for _ in range(2)]
    for job in jobs:
        await client.post_chunk(job, "a")
        await client.post_done(job, status="IN_PROGRESS", output="half")
    others = [await client.run() for _ in range(2)]
    assert (await client.get("/job-take/other"))["id"] == others[0]
    return [*jobs, *others]


async def statuses(client: Client, jobs: list[str]) -> list[str]:
    return [(await client.status(job))["status"] for job in jobs]


def lose(client: Client) -> None:
    client.emulator.queue.lose(client.emulator.queue.worker("w"))


async def test_the_jobs_of_a_lost_worker_fail_with_its_name() -> None:
    async with emulator_client() as client:
        jobs = await start_jobs(client)
        lose(client)
        expected = ["FAILED", "FAILED", "IN_PROGRESS", "IN_QUEUE"]
        assert await statuses(client, jobs) == expected
        report = await client.status(jobs[0])
        assert report["error"] == "w exited while it ran this job"
        assert await client.get(f"/stream/{jobs[0]}") == {
            "status": "FAILED",
            "stream": [{"output": "a"}],
            "error": report["error"],
        }


async def test_the_jobs_of_a_lost_worker_can_go_back_to_the_front_of_the_queue() -> None:
    async with emulator_client(lost_as=LostAs.REQUEUED) as client:
        first, second, others, last = jobs = await start_jobs(client)
        lose(client)
        expected = ["IN_QUEUE", "IN_QUEUE", "IN_PROGRESS", "IN_QUEUE"]
        assert await statuses(client, jobs) == expected
        assert await client.status(first) == {"id": first, "status": "IN_QUEUE"}
        batch = await client.get("/job-take-batch/new?batch_size=9")
        assert [job["id"] for job in batch] == [first, second, last]
        await client.post_chunk(first, "b", worker="new")
        await client.post_chunk(first, "late", worker="w")
        stream = (await client.get(f"/stream/{first}"))["stream"]
        assert stream == [{"output": "a"}, {"output": "b"}]
        for job, worker in ((first, "new"), (others, "other")):
            await client.post_done(job, worker, output=1)
            assert (await client.status(job))["status"] == "COMPLETED"


async def test_the_progress_of_a_lost_worker_is_gone_when_the_job_runs_again() -> None:
    async with emulator_client(lost_as=LostAs.REQUEUED) as client:
        first, *_ = await start_jobs(client)
        lose(client)
        await client.get("/job-take/new")
        report = await client.status(first)
        assert (report["status"], "output" in report) == ("IN_PROGRESS", False)


async def test_the_jobs_of_a_lost_worker_can_be_left_until_their_time_is_over() -> None:
    async with emulator_client(lost_as=LostAs.LEFT, execution_timeout_s=60) as client:
        jobs = await start_jobs(client)
        lose(client)
        expected = ["IN_PROGRESS", "IN_PROGRESS", "IN_PROGRESS", "IN_QUEUE"]
        assert await statuses(client, jobs) == expected
        client.let_pass(60)
        for job in jobs[:3]:
            assert (await client.wait_ended(job))["status"] == "TIMED_OUT"


async def test_a_lost_worker_is_initializing_again_and_is_not_notified_of_old_cancels() -> None:
    async with emulator_client() as client:
        job = await client.start()
        await client.post(f"/cancel/{job}")
        assert (await client.get("/health"))["workers"]["idle"] == 1
        lose(client)
        assert (await client.get("/health"))["workers"]["initializing"] == 1
        assert await client.request("GET", "/job-stop/w") == (204, None)


async def test_a_caller_who_waits_learns_at_once_that_the_worker_is_lost() -> None:
    async with emulator_client(take_poll_s=600) as client:
        waiting = asyncio.create_task(client.post("/runsync", {"input": 1}))
        await client.get("/job-take/w")
        lose(client)
        async with asyncio.timeout(60):
            assert (await waiting)["status"] == "FAILED"


async def test_a_closed_endpoint_delivers_no_job_once_more() -> None:
    async with emulator_client() as client:
        fault = {"on": "take", "do": "duplicate", "calls": 1}
        await client.post("/control/faults", fault)
        await client.start()
        client.emulator.queue.close()
        assert await client.request("GET", "/job-take/w") == (204, None)
