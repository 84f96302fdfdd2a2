"""The counts of /health."""

from support.processes.background import poll_until
from support.processes.emulator_peer import Peer, with_options

from emulator import LostJobHandling

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
