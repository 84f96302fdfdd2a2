"""Endpoints that shut down, and workers that have exited."""

import asyncio

import pytest
from support.processes.emulator_peer import Peer, with_options

from emulator import LostJobHandling

POLLS = ("/job-take/a", "/job-take-batch/b?batch_size=2", "/job-stop/c")


@with_options(long_poll_s=600)
async def test_closing_answers_every_open_or_later_poll_immediately(peer: Peer) -> None:
    for _ in range(2):
        polls = [await peer.poll(path) for path in POLLS]
        peer.queue.close()
        async with asyncio.timeout(300):
            assert await asyncio.gather(*polls) == [(204, None)] * 3


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/run"), ("POST", "/runsync"), ("GET", "/openai/v1/models")]
)
async def test_a_closed_endpoint_cancels_queued_jobs_and_refuses_new_ones(
    peer: Peer, method: str, path: str
) -> None:
    job = await peer.run()
    peer.queue.close()
    status, answer = await peer.request(method, path, json={"input": 1})
    assert (status, answer["error"].endswith("the endpoint is shutting down")) == (503, True)
    assert [*peer.queue.jobs] == [job]
    assert (await peer.status(job), await peer.take()) == ("CANCELLED", None)


@with_options(long_poll_s=600)
async def test_running_jobs_can_still_end_and_be_cancelled_on_a_closed_endpoint(peer: Peer) -> None:
    cancelled = await peer.start()
    waiting = asyncio.create_task(peer.post("/runsync", {"input": 1}))
    completed = await peer.take()
    peer.queue.close()
    await peer.post(f"/cancel/{cancelled}")
    assert await peer.jobs_to_stop() == [cancelled]
    await peer.post_chunk(completed, "a")
    await peer.post_done(completed, output=["a"])
    report = await waiting
    assert (report["status"], report["output"]) == ("COMPLETED", ["a"])


# Workers that have exited:


async def lose_worker(peer: Peer) -> list[str]:
    """Start two jobs on worker w and one on another, queue a fourth, and lose w."""
    jobs = [await peer.start() for _ in range(2)]
    for job in jobs:
        await peer.post_chunk(job, "a")
        await peer.post_done(job, status="IN_PROGRESS", output="half")
    others = [await peer.run() for _ in range(2)]
    assert await peer.take("other") == others[0]
    peer.queue.handle_worker_exit(peer.worker)
    return [*jobs, *others]


async def statuses(peer: Peer, jobs: list[str]) -> list[str | None]:
    return [await peer.status(job) for job in jobs]


async def test_the_jobs_of_a_lost_worker_fail_with_its_name(peer: Peer) -> None:
    await peer.post(f"/cancel/{await peer.start()}")
    jobs = await lose_worker(peer)
    assert await statuses(peer, jobs) == ["FAILED", "FAILED", "IN_PROGRESS", "IN_QUEUE"]
    error = "w exited while it ran this job"
    assert (await peer.status_object(jobs[0]))["error"] == error
    stream = {"status": "FAILED", "stream": [{"output": "a"}], "error": error}
    assert await peer.get(f"/stream/{jobs[0]}") == stream
    # The next worker of this name gets no stop of an earlier job.
    assert await peer.jobs_to_stop() == []


@with_options(lost_as=LostJobHandling.REQUEUED)
async def test_the_jobs_of_a_lost_worker_can_go_back_to_the_front_of_the_queue(peer: Peer) -> None:
    first, second, _, last = jobs = await lose_worker(peer)
    assert await statuses(peer, jobs) == ["IN_QUEUE", "IN_QUEUE", "IN_PROGRESS", "IN_QUEUE"]
    assert await peer.status_object(first) == {"id": first, "status": "IN_QUEUE"}
    batch = await peer.get("/job-take-batch/new?batch_size=9")
    assert [job["id"] for job in batch] == [first, second, last]
    # A requeued job loses its progress but not its streamed chunks.
    assert "output" not in await peer.status_object(first)
    await peer.post_chunk(first, "b", worker="new")
    await peer.post_chunk(first, "late", worker="w")
    assert await peer.stream(first) == ["a", "b"]
    await peer.post_done(first, "new", output=1)
    assert await peer.status(first) == "COMPLETED"


@with_options(lost_as=LostJobHandling.LEFT)
async def test_the_jobs_of_a_lost_worker_can_be_left_until_they_time_out(peer: Peer) -> None:
    jobs = await lose_worker(peer)
    assert await statuses(peer, jobs) == [*["IN_PROGRESS"] * 3, "IN_QUEUE"]
    peer.advance_clock(600)
    assert (await peer.wait_until_ended(jobs[0]))["status"] == "TIMED_OUT"
