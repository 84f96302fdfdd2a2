"""How long jobs wait, run and are kept: policies, the endpoint's defaults, retention."""

import asyncio
from typing import Any

import pytest
from support.processes.emulator_client import Client, emulator_client

from emulator import ExpiredAs, Queue
from emulator.payload import Policy

WEEK_MS = 604_800_000
LONG_S = 600.0
STATUS_TTL = f"ttl must be a whole number from 0 to {WEEK_MS}"


@pytest.mark.parametrize("path", ["/run", "/runsync"])
@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"executionTimeout": 4_999}, "policy.executionTimeout: "),
        ({"executionTimeout": WEEK_MS + 1}, "policy.executionTimeout: "),
        ({"executionTimeout": "soon"}, "policy.executionTimeout: "),
        ({"ttl": 9_999}, "policy.ttl: "),
        ({"ttl": WEEK_MS + 1}, "policy.ttl: "),
        ({"lowPriority": "perhaps"}, "policy.lowPriority: "),
        (5, "policy: "),
    ],
)
async def test_a_policy_out_of_bounds_is_refused_with_the_name_of_its_field(
    path: str, policy: object, message: str
) -> None:
    async with emulator_client() as client:
        body = {"input": 1, "policy": policy}
        status, answer = await client.request("POST", path, json=body)
        assert (status, message in answer["error"]) == (400, True)
        assert await client.get("/control/jobs") == {"jobs": []}


@pytest.mark.parametrize("ttl", [10_000, WEEK_MS])
@pytest.mark.parametrize("execution_timeout", [5_000, WEEK_MS])
async def test_a_policy_on_its_bounds_counts_in_milliseconds(
    ttl: int, execution_timeout: int
) -> None:
    async with emulator_client() as client:
        policy = {"executionTimeout": execution_timeout, "ttl": ttl, "lowPriority": True}
        job = client.emulator.job(await client.run(policy=policy))
        assert (job.execution_timeout_s, job.ttl_s) == (execution_timeout / 1000, ttl / 1000)


async def test_a_job_that_runs_too_long_is_timed_out_and_its_worker_is_notified() -> None:
    async with emulator_client(execution_timeout_s=LONG_S) as client:
        job = await client.run()
        client.let_pass(LONG_S)  # which does not count
        await client.get("/job-take/w")
        client.let_pass(LONG_S)
        report = await client.wait_ended(job)
        assert report["status"] == "TIMED_OUT"
        assert "executionTimeout" in report["error"]
        assert report["executionTime"] >= LONG_S * 1000
        assert await client.get("/job-stop/w") == {"jobsToStop": [job]}
        await client.post_done(job, output="late")
        assert await client.status(job) == report


async def test_the_time_in_the_queue_is_no_execution() -> None:
    async with emulator_client(execution_timeout_s=LONG_S) as client:
        job = await client.run()
        client.let_pass(LONG_S)
        assert await client.status(job) == {"id": job, "status": "IN_QUEUE"}


async def test_a_jobs_own_policy_goes_before_the_endpoints() -> None:
    async with emulator_client(execution_timeout_s=LONG_S, ttl_s=LONG_S) as client:
        policy = {"executionTimeout": WEEK_MS, "ttl": WEEK_MS}
        job = await client.start(policy=policy)
        client.let_pass(LONG_S)
        assert (await client.status(job))["status"] == "IN_PROGRESS"


async def test_a_policys_executiontimeout_times_a_job_out() -> None:
    queue = Queue()
    # Not validated: a caller's must be longer.
    job = queue.submit({}, Policy.model_construct(execution_timeout_ms=20))
    queue.take(queue.worker("w"), 1)
    assert await job.wait_ended(60)
    assert (job.status, job.error) == ("TIMED_OUT", "the job's executionTimeout is over")


async def test_a_job_that_waits_longer_than_its_ttl_is_timed_out_and_not_delivered() -> None:
    async with emulator_client(ttl_s=LONG_S) as client:
        job = await client.run()
        client.let_pass(LONG_S)
        report = await client.wait_ended(job)
        expected = {"id": job, "status": "TIMED_OUT", "error": "the job's ttl is over"}
        assert report == expected
        assert await client.request("GET", "/job-take/w") == (204, None)
        assert (await client.get("/health"))["jobs"]["inQueue"] == 0


async def test_a_job_that_runs_beyond_its_ttl_is_timed_out_and_its_worker_is_notified() -> None:
    async with emulator_client(ttl_s=LONG_S) as client:
        job = await client.start()
        client.let_pass(LONG_S)
        report = await client.wait_ended(job)
        assert (report["status"], report["error"]) == ("TIMED_OUT", "the job's ttl is over")
        assert await client.get("/job-stop/w") == {"jobsToStop": [job]}


async def test_a_job_that_expired_can_be_deleted_instead_and_its_worker_is_notified() -> None:
    async with emulator_client(ttl_s=LONG_S, expired_as=ExpiredAs.DELETED) as client:
        running = await client.start()
        waiting = await client.run()
        client.let_pass(LONG_S)
        for job in (running, waiting):
            await client.wait_forgotten(job)
        assert await client.get("/control/jobs") == {"jobs": []}
        assert await client.get("/job-stop/w") == {"jobsToStop": [running]}
        assert await client.request("GET", "/job-take/w") == (204, None)


async def test_only_a_ttl_deletes() -> None:
    async with emulator_client(execution_timeout_s=LONG_S, expired_as=ExpiredAs.DELETED) as client:
        job = await client.start()
        client.let_pass(LONG_S)
        assert (await client.wait_ended(job))["status"] == "TIMED_OUT"


async def complete_run(client: Client) -> str:
    job = await client.start()
    await client.post_done(job, output=1)
    return job


async def complete_sync(client: Client, path: str, body: dict[str, Any]) -> str:
    asking = asyncio.create_task(client.post(path, body))
    job = str((await client.get("/job-take/w"))["id"])
    await client.post_done(job, output=1)
    await asking
    return job


async def complete_each_kind(client: Client) -> list[str]:
    """Complete a job of /run, one of /runsync and one of the gateway."""
    return [
        await complete_run(client),
        await complete_sync(client, "/runsync", {"input": 1}),
        await complete_sync(client, "/openai/v1/completions", {}),
    ]


async def test_the_result_of_run_is_kept_for_a_time_of_its_own() -> None:
    async with emulator_client(
        run_retention_s=LONG_S, runsync_retention_s=2 * LONG_S, take_poll_s=5
    ) as client:
        forgotten, *kept = await complete_each_kind(client)
        client.let_pass(LONG_S)
        await client.wait_forgotten(forgotten)
        assert [await client.knows(job) for job in kept] == [True, True]


async def test_the_results_of_runsync_and_the_gateway_are_kept_for_a_time_of_their_own() -> None:
    async with emulator_client(
        run_retention_s=2 * LONG_S, runsync_retention_s=LONG_S, take_poll_s=5
    ) as client:
        kept, *forgotten = await complete_each_kind(client)
        client.let_pass(LONG_S)
        for job in forgotten:
            await client.wait_forgotten(job)
        assert await client.knows(kept)


async def test_a_job_that_has_not_ended_is_not_forgotten() -> None:
    async with emulator_client(run_retention_s=LONG_S) as client:
        running = await client.start()
        waiting = await client.run()
        client.let_pass(LONG_S)
        assert [await client.knows(job) for job in (running, waiting)] == [True, True]


async def test_a_job_that_is_retried_is_not_forgotten_as_the_one_that_failed() -> None:
    async with emulator_client(run_retention_s=LONG_S) as client:
        job = await client.start()
        await client.post_done(job, error="boom")
        await client.post(f"/retry/{job}")
        client.let_pass(LONG_S)
        assert await client.status(job) == {"id": job, "status": "IN_QUEUE"}


async def test_asking_for_the_status_can_say_how_long_a_result_is_kept_from_now_on() -> None:
    async with emulator_client(run_retention_s=LONG_S) as client:
        kept, forgotten = [await complete_run(client) for _ in range(2)]
        for job, ttl in ((kept, WEEK_MS), (forgotten, 1)):
            answer = await client.get(f"/status/{job}?ttl={ttl}")
            assert (answer["id"], answer["output"]) == (job, 1)
        await client.wait_forgotten(forgotten)
        client.let_pass(LONG_S)
        assert await client.knows(kept)


async def test_asking_for_the_status_can_say_how_long_a_job_has_from_now_on() -> None:
    async with emulator_client() as client:
        running = await client.start()
        waiting = await client.run()
        for job in (running, waiting):
            await client.get(f"/status/{job}?ttl=1")
            assert (await client.wait_ended(job))["error"] == "the job's ttl is over"
        assert await client.get("/job-stop/w") == {"jobsToStop": [running]}


@pytest.mark.parametrize("ttl", ["-1", "soon", "", "1.5", "²", str(WEEK_MS + 1)])
async def test_a_wrong_ttl_of_a_status_is_refused_and_changes_nothing(ttl: str) -> None:
    async with emulator_client() as client:
        job = await client.run()
        status, answer = await client.request("GET", f"/status/{job}", params={"ttl": ttl})
        assert (status, STATUS_TTL in answer["error"]) == (400, True)
        assert await client.status(job) == {"id": job, "status": "IN_QUEUE"}


async def test_a_policy_of_null_is_none() -> None:
    async with emulator_client(execution_timeout_s=LONG_S) as client:
        job = await client.start(policy=None)
        client.let_pass(LONG_S)
        assert (await client.wait_ended(job))["status"] == "TIMED_OUT"
