"""Second attempts of jobs: retries, duplicated deliveries; and purges of the queue."""

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
import pytest
from support.processes.emulator_peer import Peer, eventually, with_options

LONG_S = 600.0

Begin = Callable[[Peer], Awaitable[str]]


async def begin(peer: Peer) -> str:
    job = await peer.start({"prompt": "hi"})
    await peer.post_chunk(job, "first")
    await peer.post_done(job, status="IN_PROGRESS", output="1/2")
    return job


async def fail(peer: Peer) -> str:
    job = await begin(peer)
    await peer.post_done(job, error="boom")
    return job


async def time_out(peer: Peer) -> str:
    job = await begin(peer)
    peer.let_pass(LONG_S)
    assert (await peer.wait_ended(job))["status"] == "TIMED_OUT"
    return job


async def cancel(peer: Peer) -> str:
    job = await peer.run()
    await peer.post(f"/cancel/{job}")
    return job


@pytest.mark.parametrize("end", [fail, time_out])
async def test_a_job_that_failed_runs_again_without_its_output(peer: Peer, end: Begin) -> None:
    job = await end(peer)
    queued = {"id": job, "status": "IN_QUEUE"}
    assert await peer.request("POST", f"/retry/{job}") == (200, queued)
    assert await peer.report(job) == queued
    assert await peer.get("/job-take/w") == {"id": job, "input": {"prompt": "hi"}}
    # The stop of the first attempt is not the second's.
    assert peer.worker.stops == []
    running = await peer.report(job)
    assert (running["status"], "output" in running) == ("IN_PROGRESS", False)
    await peer.post_chunk(job, "second")
    assert await peer.stream(job) == ["second"]
    await peer.post_done(job, output=["second"])
    report = await peer.report(job)
    assert (report["status"], report["output"]) == ("COMPLETED", ["second"])
    assert "error" not in report


@pytest.mark.parametrize(
    ("begin", "status"),
    [
        (Peer.run, "IN_QUEUE"),
        (Peer.start, "IN_PROGRESS"),
        (Peer.complete, "COMPLETED"),
        (cancel, "CANCELLED"),
    ],
)
async def test_only_failed_jobs_are_retried(peer: Peer, begin: Begin, status: str) -> None:
    job = await begin(peer)
    before = await peer.report(job)
    code, answer = await peer.request("POST", f"/retry/{job}")
    assert code == 400
    assert answer["error"].endswith(f"FAILED or TIMED_OUT can be retried, not {status}")
    assert await peer.report(job) == before


async def test_a_retry_forgets_how_long_the_first_result_was_to_be_kept(peer: Peer) -> None:
    job = await fail(peer)
    await peer.get(f"/status/{job}?ttl=60000")
    await peer.post(f"/retry/{job}")
    peer.let_pass(60)
    assert await peer.status(job) == "IN_QUEUE"


async def streamed(peer: Peer, chunk: str) -> tuple[str, aiohttp.ClientResponse]:
    """Return a job that has posted a chunk, and the answer of the caller who reads it."""
    url = f"{peer.emulator.openai_url}/completions"
    asking = asyncio.create_task(peer.session.post(url, json={"stream": True}).__aenter__())
    await eventually(lambda: peer.queue.has_waiting)
    job = await peer.take()
    await peer.post_chunk(job, chunk)
    return job, await asking


async def test_a_retry_ends_the_stream_of_who_still_reads_the_first_attempt(peer: Peer) -> None:
    job, answer = await streamed(peer, "data: 1\n\n")
    assert await answer.content.readline() == b"data: 1\n"
    # In one step of the event loop: the reader sees the second attempt only.
    first = peer.emulator.job(job)
    peer.queue.fail(first, "boom")
    peer.queue.retry(first)
    peer.queue.take(peer.worker, 1)
    for _ in range(2):
        peer.queue.add_chunk(first, "data: of the second\n\n")
    rest = await answer.text()
    assert "second" not in rest
    assert '"error"' in rest


async def test_a_stream_that_was_read_to_its_last_event_is_not_cancelled(peer: Peer) -> None:
    """Clients hang up there, and the worker's final post comes later."""
    job, answer = await streamed(peer, "data: 1\n\ndata: [DONE]\n\n")
    assert await answer.text() == "data: 1\n\ndata: [DONE]\n\n"
    answer.close()
    await peer.post_done(job, output=[])
    assert await peer.status(job) == "COMPLETED"


# A take that is duplicated on demand:


async def start_duplicated(peer: Peer) -> str:
    """Start a job on worker w that will be delivered once more."""
    await peer.add_fault(on="take", do="duplicate", calls=1)
    return await peer.start()


async def test_a_second_delivery_is_not_a_job_that_waits_and_a_purge_leaves_it(peer: Peer) -> None:
    job = await start_duplicated(peer)
    assert (await peer.get("/health"))["jobs"]["inQueue"] == 0
    assert await peer.post("/purge-queue") == {"removed": 0, "status": "completed"}
    assert await peer.status(job) == "IN_PROGRESS"
    assert await peer.take() == job


async def test_a_job_that_ended_meanwhile_is_not_delivered_once_more(peer: Peer) -> None:
    job = await start_duplicated(peer)
    await peer.post_done(job, output=1)
    assert await peer.request("GET", "/job-take/w") == (204, None)


async def test_both_workers_of_a_duplicated_job_are_heeded_and_no_other(peer: Peer) -> None:
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


@with_options(take_poll_s=600)
async def test_a_second_delivery_that_fails_leaves_the_job_with_its_worker(peer: Peer) -> None:
    job = await start_duplicated(peer)
    await peer.add_fault(on="take", do="delay", delay_s=600)
    hanging = await peer.poll("/job-take/other")
    hanging.cancel()
    await asyncio.wait([hanging])
    assert await peer.status(job) == "IN_PROGRESS"
    await peer.post_done(job, output=1)
    assert await peer.status(job) == "COMPLETED"


async def test_a_purge_cancels_what_waits_and_leaves_the_rest_alone(peer: Peer) -> None:
    completed, running, cancelled = await peer.complete(), await peer.start(), await cancel(peer)
    waiting = [await peer.run() for _ in range(2)]
    purged = {"removed": 2, "status": "completed"}
    assert await peer.request("POST", "/purge-queue") == (200, purged)
    statuses = [await peer.status(job) for job in (completed, running, cancelled, *waiting)]
    assert statuses == ["COMPLETED", "IN_PROGRESS", *["CANCELLED"] * 3]
    assert (await peer.stops(), await peer.take()) == ([], None)
    assert (await peer.post("/purge-queue"))["removed"] == 0
