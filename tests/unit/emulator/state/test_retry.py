"""Second attempts of jobs: retries, duplicated deliveries; and purges of the queue."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from support.processes.emulator_peer import Peer, with_options


@pytest.mark.parametrize("ended_as", ["FAILED", "TIMED_OUT"])
async def test_a_retried_job_runs_again_without_its_previous_output(
    peer: Peer, ended_as: str
) -> None:
    job = await peer.start({"prompt": "hi"})
    await peer.post_chunk(job, "first")
    await peer.post_done(job, status="IN_PROGRESS", output="1/2")
    if ended_as == "FAILED":
        await peer.post_done(job, error="boom")
    else:
        peer.advance_clock(600)
    assert (await peer.wait_until_ended(job))["status"] == ended_as
    queued = {"id": job, "status": "IN_QUEUE"}
    assert await peer.request("POST", f"/retry/{job}") == (200, queued)
    assert await peer.status_object(job) == queued
    assert await peer.get("/job-take/w") == {"id": job, "input": {"prompt": "hi"}}
    # The stop of the first attempt doesn't reach the second.
    assert peer.worker.pending_stops == []
    running = await peer.status_object(job)
    assert (running["status"], "output" in running) == ("IN_PROGRESS", False)
    await peer.post_chunk(job, "second")
    assert await peer.stream(job) == ["second"]
    await peer.post_done(job, output=["second"])
    report = await peer.status_object(job)
    assert (report["status"], report["output"]) == ("COMPLETED", ["second"])
    assert "error" not in report


@pytest.mark.parametrize(
    ("begin", "status"),
    [(Peer.run, "IN_QUEUE"), (Peer.start, "IN_PROGRESS"), (Peer.complete, "COMPLETED")],
)
async def test_only_failed_jobs_are_retried(
    peer: Peer, begin: Callable[[Peer], Awaitable[str]], status: str
) -> None:
    job = await begin(peer)
    code, answer = await peer.request("POST", f"/retry/{job}")
    assert code == 400
    assert answer["error"].endswith(f"FAILED or TIMED_OUT can be retried, not {status}")
    assert await peer.status(job) == status


# Duplicated takes:


async def start_duplicated(peer: Peer) -> str:
    """Start a job on worker w; the next take delivers it again."""
    await peer.add_fault(on="take", do="duplicate", calls=1)
    return await peer.start()


async def test_a_job_that_has_ended_meanwhile_is_not_delivered_again(peer: Peer) -> None:
    job = await start_duplicated(peer)
    await peer.post_done(job, output=1)
    assert await peer.request("GET", "/job-take/w") == (204, None)


async def test_posts_of_both_workers_of_a_duplicated_job_are_accepted(peer: Peer) -> None:
    job = await start_duplicated(peer)
    assert await peer.take("other") == job
    await peer.post_chunk(job, "a")
    await peer.post_chunk(job, "b", worker="other")
    assert await peer.stream(job) == ["a", "b"]


async def test_posts_of_a_worker_that_does_not_run_the_job_are_ignored(peer: Peer) -> None:
    job = await peer.start()
    assert await peer.post_chunk(job, "a", worker="stranger") == (200, {})
    assert await peer.post_done(job, "stranger", output=1) == (200, {})
    assert await peer.get(f"/stream/{job}") == {"status": "IN_PROGRESS", "stream": []}


@with_options(long_poll_s=600)
async def test_a_second_delivery_that_fails_leaves_the_job_with_its_worker(peer: Peer) -> None:
    job = await start_duplicated(peer)
    await peer.add_fault(on="take", do="delay", delay_s=600)
    hanging = await peer.poll("/job-take/other")
    hanging.cancel()
    await asyncio.wait([hanging])
    await peer.post_done(job, output=1)
    assert await peer.status(job) == "COMPLETED"


async def test_a_purge_cancels_only_queued_jobs(peer: Peer) -> None:
    completed, running = await peer.complete(), await peer.start()
    waiting = [await peer.run() for _ in range(2)]
    purged = {"removed": 2, "status": "completed"}
    assert await peer.request("POST", "/purge-queue") == (200, purged)
    statuses = [await peer.status(job) for job in (completed, running, *waiting)]
    assert statuses == ["COMPLETED", "IN_PROGRESS", "CANCELLED", "CANCELLED"]
    assert (await peer.jobs_to_stop(), await peer.take()) == ([], None)
