"""Time limits of jobs and their results: policies, the endpoint's defaults, retention."""

import asyncio

import pytest
from support.processes.background import poll_until
from support.processes.emulator_peer import Peer, emulator_peer, with_options

from emulator import ExpiredJobHandling

WEEK_MS = 604_800_000
LONG_S = 600.0
TTL_IS_OVER = "the job's ttl has expired"


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"executionTimeout": 4_999}, "policy.executionTimeout: "),
        ({"executionTimeout": WEEK_MS + 1}, "policy.executionTimeout: "),
        ({"ttl": 9_999}, "policy.ttl: "),
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


@pytest.mark.parametrize(("run_ms", "ttl"), [(5_000, 10_000), (WEEK_MS, WEEK_MS)])
async def test_policies_are_in_milliseconds(peer: Peer, ttl: int, run_ms: int) -> None:
    policy = {"executionTimeout": run_ms, "ttl": ttl, "lowPriority": True}
    job = peer.emulator.get_job(await peer.run(policy=policy))
    assert (job.execution_timeout_s, job.ttl_s) == (run_ms / 1000, ttl / 1000)


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


@pytest.mark.parametrize("ttl", ["-1", "soon", "", "1.5", "²", str(WEEK_MS + 1)])
async def test_an_invalid_ttl_in_a_status_request_is_refused_and_changes_nothing(
    peer: Peer, ttl: str
) -> None:
    job = await peer.run()
    status, answer = await peer.request("GET", f"/status/{job}", params={"ttl": ttl})
    message = f"ttl must be a whole number from 0 to {WEEK_MS}"
    assert (status, message in answer["error"]) == (400, True)
    assert await peer.status_object(job) == {"id": job, "status": "IN_QUEUE"}
