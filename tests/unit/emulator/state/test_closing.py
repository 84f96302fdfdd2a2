"""An endpoint that is shutting down, and workers that are gone."""

import asyncio

import pytest
from support.processes.emulator_peer import Peer, with_options

from emulator import LostAs

POLLS = ("/job-take/a", "/job-take-batch/b?batch_size=2", "/job-stop/c")


@with_options(take_poll_s=600)
async def test_closing_releases_every_held_poll_at_once_and_holds_no_later_one(peer: Peer) -> None:
    for _ in range(2):
        polls = [await peer.poll(path) for path in POLLS]
        peer.queue.close()
        async with asyncio.timeout(300):
            assert await asyncio.gather(*polls) == [(204, None)] * 3


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/run"), ("POST", "/runsync"), ("GET", "/openai/v1/models")]
)
async def test_a_closed_endpoint_cancels_what_waits_and_refuses_new_jobs(
    peer: Peer, method: str, path: str
) -> None:
    job = await peer.run()
    peer.queue.close()
    status, answer = await peer.request(method, path, json={"input": 1})
    assert (status, answer["error"].endswith("the endpoint is shutting down")) == (503, True)
    assert [*peer.queue.jobs] == [job]
    assert (await peer.status(job), await peer.take()) == ("CANCELLED", None)


@with_options(take_poll_s=600)
async def test_running_jobs_can_still_end_and_be_cancelled_on_a_closed_endpoint(peer: Peer) -> None:
    is_cancelled = await peer.start()
    waiting = asyncio.create_task(peer.post("/runsync", {"input": 1}))
    ends = await peer.take()
    peer.queue.close()
    await peer.post(f"/cancel/{is_cancelled}")
    assert await peer.stops() == [is_cancelled]
    await peer.post_chunk(ends, "a")
    await peer.post_done(ends, output=["a"])
    report = await waiting
    assert (report["status"], report["output"]) == ("COMPLETED", ["a"])


# Workers that are gone:


async def lose_with_jobs(peer: Peer) -> list[str]:
    """Start two jobs on worker w and one on another, queue a fourth, and lose w."""
    jobs = [await peer.start() for _ in range(2)]
    for job in jobs:
        await peer.post_chunk(job, "a")
        await peer.post_done(job, status="IN_PROGRESS", output="half")
    others = [await peer.run() for _ in range(2)]
    assert await peer.take("other") == others[0]
    peer.queue.lose(peer.worker)
    return [*jobs, *others]


async def statuses(peer: Peer, jobs: list[str]) -> list[str | None]:
    return [await peer.status(job) for job in jobs]


async def test_the_jobs_of_a_lost_worker_fail_with_its_name(peer: Peer) -> None:
    await peer.post(f"/cancel/{await peer.start()}")
    jobs = await lose_with_jobs(peer)
    assert await statuses(peer, jobs) == ["FAILED", "FAILED", "IN_PROGRESS", "IN_QUEUE"]
    error = "w exited while it ran this job"
    assert (await peer.report(jobs[0]))["error"] == error
    stream = {"status": "FAILED", "stream": [{"output": "a"}], "error": error}
    assert await peer.get(f"/stream/{jobs[0]}") == stream
    # The next of its name learns of no earlier cancel.
    assert await peer.stops() == []


@with_options(lost_as=LostAs.REQUEUED)
async def test_the_jobs_of_a_lost_worker_can_go_back_to_the_front_of_the_queue(peer: Peer) -> None:
    first, second, _, last = jobs = await lose_with_jobs(peer)
    assert await statuses(peer, jobs) == ["IN_QUEUE", "IN_QUEUE", "IN_PROGRESS", "IN_QUEUE"]
    assert await peer.report(first) == {"id": first, "status": "IN_QUEUE"}
    batch = await peer.get("/job-take-batch/new?batch_size=9")
    assert [job["id"] for job in batch] == [first, second, last]
    # Its progress is gone, and what was streamed stays.
    assert "output" not in await peer.report(first)
    await peer.post_chunk(first, "b", worker="new")
    await peer.post_chunk(first, "late", worker="w")
    assert await peer.stream(first) == ["a", "b"]
    await peer.post_done(first, "new", output=1)
    assert await peer.status(first) == "COMPLETED"


@with_options(lost_as=LostAs.LEFT)
async def test_the_jobs_of_a_lost_worker_can_be_left_until_their_time_is_over(peer: Peer) -> None:
    jobs = await lose_with_jobs(peer)
    assert await statuses(peer, jobs) == [*["IN_PROGRESS"] * 3, "IN_QUEUE"]
    peer.let_pass(600)
    assert (await peer.wait_ended(jobs[0]))["status"] == "TIMED_OUT"
