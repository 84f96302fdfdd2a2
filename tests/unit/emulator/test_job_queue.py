"""Jobs, from the queue to their end: limits, closing, retries, hand-overs, counts of /health."""

import asyncio
import json
import socket
import struct
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.processes.background import poll_until
from support.processes.emulator_peer import Peer, emulator_peer, with_options

from emulator import ExpiredJobHandling, LostJobHandling

WEEK_MS = 604_800_000
LONG_S = 600.0
TTL_IS_OVER = "the job's ttl has expired"


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"executionTimeout": 4_999}, "policy.executionTimeout: "),
        ({"ttl": WEEK_MS + 1}, "policy.ttl: "),
        ({"lowPriority": "perhaps"}, "policy.lowPriority: "),
        (5, "policy: "),
    ],
)
async def test_a_policy_out_of_range_is_refused_by_its_field(
    peer: Peer, policy: object, message: str
) -> None:
    status, answer = await peer.request("POST", "/run", json={"input": 1, "policy": policy})
    assert (status, message in answer["error"]) == (400, True)
    assert peer.queue.jobs == {}


@pytest.mark.parametrize("policy", [None, {"executionTimeout": 500_000}])
# The emulator deletes jobs only after a ttl.
@with_options(execution_timeout_s=500, expired_as=ExpiredJobHandling.DELETED)
async def test_a_job_that_runs_too_long_is_timed_out_and_its_worker_is_notified(
    peer: Peer, policy: dict[str, int] | None
) -> None:
    job = await peer.run(policy=policy)
    peer.advance_clock(500)
    # Time in the queue doesn't count.
    assert await peer.status_object(job) == {"id": job, "status": "IN_QUEUE"}
    await peer.take()
    peer.advance_clock(500)
    report = await peer.wait_until_ended(job)
    assert report["status"] == "TIMED_OUT"
    assert report["error"] == "the job's executionTimeout has expired"
    assert min(report["delayTime"], report["executionTime"]) >= 500_000
    assert await peer.jobs_to_stop() == [job]
    await peer.post_done(job, output="late")
    assert await peer.status_object(job) == report


@with_options(ttl_s=LONG_S)
async def test_a_job_beyond_its_ttl_is_timed_out_unless_its_own_policy_says_otherwise(
    peer: Peer,
) -> None:
    other = await peer.start(policy={"executionTimeout": WEEK_MS, "ttl": WEEK_MS})
    running, waiting = await peer.start(), await peer.run()
    peer.advance_clock(LONG_S)
    expired = {"id": waiting, "status": "TIMED_OUT", "error": TTL_IS_OVER}
    assert await peer.wait_until_ended(waiting) == expired
    report = await peer.wait_until_ended(running)
    assert (report["status"], report["error"]) == ("TIMED_OUT", TTL_IS_OVER)
    assert (await peer.jobs_to_stop(), await peer.take()) == ([running], None)
    assert (await peer.get("/health"))["jobs"]["inQueue"] == 0
    assert await peer.status(other) == "IN_PROGRESS"


@with_options(ttl_s=LONG_S, expired_as=ExpiredJobHandling.DELETED)
async def test_an_expired_job_can_be_deleted_instead(peer: Peer) -> None:
    running, _ = await peer.start(), await peer.run()
    peer.advance_clock(LONG_S)
    await poll_until(lambda: not peer.queue.jobs)
    assert (await peer.jobs_to_stop(), await peer.take()) == ([running], None)


async def complete_sync(peer: Peer, path: str) -> str:
    asking = asyncio.create_task(peer.post(path, {"input": 1}))
    await poll_until(lambda: peer.queue.has_available_jobs)
    job: str = await peer.take()
    await peer.post_done(job, output=1)
    await asking
    return job


@pytest.mark.parametrize("shorter", ["run", "runsync"])
async def test_results_of_run_and_of_runsync_have_their_own_retention_times(shorter: str) -> None:
    retention = {"run_retention_s": 2 * LONG_S, "runsync_retention_s": 2 * LONG_S}
    async with emulator_peer(**{**retention, f"{shorter}_retention_s": LONG_S}) as peer:
        run_jobs = {await peer.complete()}
        runsync_jobs = {
            await complete_sync(peer, path) for path in ("/runsync", "/openai/v1/completions")
        }
        peer.advance_clock(LONG_S)
        deleted, others = (run_jobs, runsync_jobs) if shorter == "run" else (runsync_jobs, run_jobs)
        await poll_until(lambda: not deleted & {*peer.queue.jobs})
        assert {*peer.queue.jobs} == others


@with_options(run_retention_s=LONG_S)
async def test_a_status_request_can_set_the_ttl_of_a_job_or_its_result(peer: Peer) -> None:
    retained, deleted = [await peer.complete() for _ in range(2)]
    for job, ttl in ((retained, WEEK_MS), (deleted, 1)):
        assert (await peer.get(f"/status/{job}?ttl={ttl}"))["output"] == 1
    await poll_until(lambda: deleted not in peer.queue.jobs)
    running, waiting = await peer.start(), await peer.run()
    for job in (running, waiting):
        await peer.get(f"/status/{job}?ttl=1")
        assert (await peer.wait_until_ended(job))["error"] == TTL_IS_OVER
    assert await peer.jobs_to_stop() == [running]
    peer.advance_clock(LONG_S)
    assert await peer.status(retained) == "COMPLETED"


@pytest.mark.parametrize("ttl", ["-1", "soon", "²", str(WEEK_MS + 1)])
async def test_an_invalid_ttl_in_a_status_request_is_refused_and_changes_nothing(
    peer: Peer, ttl: str
) -> None:
    job = await peer.run()
    status, answer = await peer.request("GET", f"/status/{job}", params={"ttl": ttl})
    message = f"ttl must be a whole number from 0 to {WEEK_MS}"
    assert (status, message in answer["error"]) == (400, True)
    assert await peer.status_object(job) == {"id": job, "status": "IN_QUEUE"}


# Endpoints that shut down, and workers that have exited:


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


# Second attempts of jobs: retries, duplicated deliveries; and purges of the queue:


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


# Workers that hang up during a take, just when they are handed a job:


LARGE = "x" * 10_000_000  # more than the buffers of a connection hold

waits = with_options(long_poll_s=600)


@asynccontextmanager
async def open_take(peer: Peer, worker: str = "w") -> AsyncIterator[socket.socket]:
    """Request a job without reading the response."""
    host, _, port = peer.emulator.root_url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"GET /v2/local/job-take/{worker} HTTP/1.1\r\nHost: emulator\r\n\r\n"
        connection.sendall(head.encode())
        await poll_until(lambda: worker in peer.queue.workers)
        yield connection


class HangUpInput(dict[str, Any]):
    """An input whose serialization makes the worker hang up after its job was taken."""

    connection: socket.socket | None = None

    def items(self) -> Any:
        if self.connection is not None:
            # Closing returns once the emulator's side has received the end of the connection.
            linger = struct.pack("ii", 1, 60)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()
        return super().items()


@waits
async def test_a_job_is_requeued_if_its_worker_hangs_up_before_the_response(peer: Peer) -> None:
    async with open_take(peer) as connection:
        hangs_up = HangUpInput(a=1)
        hangs_up.connection = connection
        job = peer.queue.submit({"input": hangs_up})
        await poll_until(lambda: connection.fileno() == -1)
        hangs_up.connection = None
    assert await peer.take() == job.id


@waits
async def test_a_job_is_requeued_if_its_worker_hangs_up_during_the_response(peer: Peer) -> None:
    async with open_take(peer) as connection:
        job = peer.queue.submit({"input": LARGE})
        await asyncio.to_thread(connection.recv, 1)
        assert job.status == "IN_PROGRESS"
    assert await peer.take() == job.id
    assert peer.worker.jobs == 1


@waits
async def test_a_worker_that_closes_its_connection_after_the_response_keeps_its_job(
    peer: Peer,
) -> None:
    url = peer.url("/job-take/w")

    def take() -> object:
        with urllib.request.urlopen(url) as answer:
            return json.load(answer)

    taking = asyncio.create_task(asyncio.to_thread(take))
    await poll_until(lambda: "w" in peer.queue.workers)
    job = peer.queue.submit({"input": 1})
    # Keep the emulator busy right after its response.
    asyncio.get_running_loop().call_soon(time.sleep, 0.1)
    assert await taking == {"id": job.id, "input": 1}
    assert job.status == "IN_PROGRESS"


@waits
async def test_a_job_that_was_cancelled_during_its_hand_over_is_not_requeued(peer: Peer) -> None:
    job = peer.queue.submit({"input": {}})
    peer.queue.take(peer.worker, 1)
    peer.queue.cancel(job)
    peer.queue.requeue([job])
    assert (job.status, peer.queue.has_available_jobs) == ("CANCELLED", False)


# The counts of /health:


IDLE = {"idle": 1, "ready": 1}


async def counts(peer: Peer, of: str) -> dict[str, int]:
    """Return the counts that are not 0."""
    return {name: number for name, number in (await peer.get("/health"))[of].items() if number}


async def test_health_counts_jobs_and_workers(peer: Peer) -> None:
    worker_counts = ("idle", "initializing", "ready", "running", "throttled", "unhealthy")
    job_counts = ("completed", "failed", "inProgress", "inQueue", "retried")
    nothing = {"jobs": dict.fromkeys(job_counts, 0), "workers": dict.fromkeys(worker_counts, 0)}
    assert await peer.get("/health") == nothing
    first, *_ = [await peer.run() for _ in range(3)]
    for _ in range(2):
        await peer.take()
    await peer.post_done(first, output=1)
    await peer.get("/ping/other")
    assert await counts(peer, "jobs") == {"completed": 1, "inProgress": 1, "inQueue": 1}
    assert await counts(peer, "workers") == {"initializing": 1, "running": 1}


@with_options(lost_as=LostJobHandling.REQUEUED)
async def test_counts_of_ended_and_retried_jobs_include_deleted_jobs(
    peer: Peer,
) -> None:
    await peer.complete()
    await peer.post(f"/cancel/{await peer.start()}")
    failed, timed_out = await peer.start(), await peer.start()
    await peer.post_done(failed, error="boom")
    peer.advance_clock(600)
    await peer.wait_until_ended(timed_out)
    assert await counts(peer, "jobs") == {"completed": 1, "failed": 2}
    await peer.post(f"/retry/{failed}")
    assert await peer.take() == failed
    peer.queue.handle_worker_exit(peer.worker)
    peer.advance_clock(1800)
    await poll_until(lambda: [*peer.queue.jobs] == [failed])
    assert await counts(peer, "jobs") == {"completed": 1, "failed": 2, "inQueue": 1, "retried": 2}


async def test_a_worker_is_counted_by_its_latest_calls(peer: Peer) -> None:
    await peer.get("/ping/w")
    assert await counts(peer, "workers") == {"initializing": 1}
    await peer.get("/ping/w?status=unhealthy")
    assert await counts(peer, "workers") == {"unhealthy": 1}
    await peer.take()
    assert await counts(peer, "workers") == IDLE
    job = await peer.start()
    assert await counts(peer, "workers") == {"running": 1}
    await peer.get("/ping/w?status=unhealthy")
    assert await counts(peer, "workers") == {"unhealthy": 1}
    await peer.get("/ping/w")
    assert await counts(peer, "workers") == {"running": 1}
    await peer.post_done(job)
    assert await counts(peer, "workers") == IDLE


async def test_a_worker_whose_start_failed_is_unhealthy_until_replaced(peer: Peer) -> None:
    for _ in range(2):
        await peer.request("GET", "/job-take/w", headers={"X-Worker-Start": "failed"})
        await peer.get("/ping/w")
        assert await counts(peer, "workers") == {"unhealthy": 1}
    peer.queue.handle_worker_exit(peer.worker)
    await peer.get("/ping/w")
    assert await counts(peer, "workers") == {"initializing": 1}
    await peer.take()
    assert await counts(peer, "workers") == IDLE
