"""The counts of /health."""

from typing import Any

from support.processes.emulator_client import emulator_client

from emulator import LostAs

LONG_S = 600.0


def workers(**counts: int) -> dict[str, int]:
    kinds = ("idle", "initializing", "ready", "running", "throttled", "unhealthy")
    return {kind: counts.get(kind, 0) for kind in kinds}


def jobs(**counts: int) -> dict[str, int]:
    kinds = ("completed", "failed", "inProgress", "inQueue", "retried")
    return {kind: counts.get(kind, 0) for kind in kinds}


async def test_health_counts_jobs_and_workers() -> None:
    async with emulator_client() as client:
        assert await client.get("/health") == {"jobs": jobs(), "workers": workers()}
        first, *_ = [await client.run() for _ in range(3)]
        for _ in range(2):
            await client.get("/job-take/w")
        await client.post_done(first, output=1)
        await client.get("/ping/other")
        assert await client.get("/health") == {
            "jobs": jobs(completed=1, inProgress=1, inQueue=1),
            "workers": workers(initializing=1, running=1),
        }


async def test_a_worker_whose_start_failed_is_unhealthy_until_another_takes_its_place() -> None:
    async with emulator_client() as client:

        async def counted() -> object:
            return (await client.get("/health"))["workers"]

        for _ in range(2):
            await client.request("GET", "/job-take/w", headers={"X-Worker-Start": "failed"})
            await client.get("/ping/w")
            assert await counted() == workers(unhealthy=1)
        client.emulator.queue.lose(client.emulator.queue.worker("w"))
        await client.get("/ping/w")
        assert await counted() == workers(initializing=1)
        await client.get("/job-take/w")
        assert await counted() == workers(idle=1, ready=1)


async def test_jobs_that_ended_are_counted_even_when_they_are_forgotten() -> None:
    async with emulator_client(run_retention_s=LONG_S, execution_timeout_s=LONG_S) as client:
        for result in ({"output": 1}, {"error": "boom"}):
            await client.post_done(await client.start(), **result)
        await client.post(f"/cancel/{await client.start()}")
        timed_out = await client.start()
        client.let_pass(LONG_S)
        await client.wait_ended(timed_out)
        client.let_pass(LONG_S)
        await client.wait_forgotten(timed_out)
        assert (await client.get("/health"))["jobs"] == jobs(completed=1, failed=2)
        assert await client.get("/control/jobs") == {"jobs": []}


async def test_a_retry_and_a_job_queued_again_after_a_loss_count_as_retried() -> None:
    async with emulator_client(lost_as=LostAs.REQUEUED) as client:
        job = await client.start()
        await client.post_done(job, error="boom")
        await client.post(f"/retry/{job}")
        assert (await client.get("/health"))["jobs"] == jobs(failed=1, inQueue=1, retried=1)
        await client.get("/job-take/w")
        client.emulator.queue.lose(client.emulator.queue.worker("w"))
        assert (await client.get("/health"))["jobs"] == jobs(failed=1, inQueue=1, retried=2)


async def test_a_worker_is_initializing_until_it_asks_for_a_job_and_then_idle_or_running() -> None:
    async with emulator_client() as client:

        async def seen() -> Any:
            return (await client.get("/health"))["workers"]

        await client.get("/ping/w")
        assert await seen() == workers(initializing=1)
        await client.get("/job-take/w")
        assert await seen() == workers(idle=1, ready=1)
        job = await client.start()
        assert await seen() == workers(running=1)
        await client.post_done(job)
        assert await seen() == workers(idle=1, ready=1)


async def test_a_worker_that_was_unhealthy_before_its_first_request_for_a_job_is_so_no_more() -> (
    None
):
    async with emulator_client() as client:
        await client.get("/ping/w?status=unhealthy")
        assert (await client.get("/health"))["workers"] == workers(unhealthy=1)
        await client.get("/job-take/w")
        assert (await client.get("/health"))["workers"] == workers(idle=1, ready=1)


async def test_a_worker_that_says_it_is_unhealthy_is_until_it_says_otherwise() -> None:
    async with emulator_client() as client:
        await client.start()
        for path, seen in (
            ("/ping/w?status=unhealthy", workers(unhealthy=1)),
            ("/ping/w", workers(running=1)),
        ):
            assert await client.request("GET", path) == (200, {})
            assert (await client.get("/health"))["workers"] == seen
