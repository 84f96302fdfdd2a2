"""The counts of /health."""

from support.processes.emulator_peer import Peer, eventually, with_options

from emulator import LostAs


async def workers(peer: Peer) -> dict[str, int]:
    """Return the counts of workers that are not 0."""
    return {name: n for name, n in (await peer.get("/health"))["workers"].items() if n}


async def jobs(peer: Peer) -> dict[str, int]:
    return {name: n for name, n in (await peer.get("/health"))["jobs"].items() if n}


IDLE = {"idle": 1, "ready": 1}


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
    assert await jobs(peer) == {"completed": 1, "inProgress": 1, "inQueue": 1}
    assert await workers(peer) == {"initializing": 1, "running": 1}


async def test_jobs_that_ended_are_counted_even_when_they_are_forgotten(peer: Peer) -> None:
    await peer.complete()
    await peer.post_done(await peer.start(), error="boom")
    await peer.post(f"/cancel/{await peer.start()}")
    timed_out = await peer.start()
    peer.let_pass(600)
    await peer.wait_ended(timed_out)
    peer.let_pass(1800)
    await eventually(lambda: not peer.queue.jobs)
    assert await jobs(peer) == {"completed": 1, "failed": 2}


@with_options(lost_as=LostAs.REQUEUED)
async def test_a_retry_and_a_job_queued_again_after_a_loss_count_as_retried(peer: Peer) -> None:
    job = await peer.start()
    await peer.post_done(job, error="boom")
    await peer.post(f"/retry/{job}")
    assert await jobs(peer) == {"failed": 1, "inQueue": 1, "retried": 1}
    await peer.take()
    peer.queue.lose(peer.worker)
    assert await jobs(peer) == {"failed": 1, "inQueue": 1, "retried": 2}


async def test_a_worker_is_initializing_until_its_first_take(peer: Peer) -> None:
    await peer.get("/ping/w")
    assert await workers(peer) == {"initializing": 1}
    await peer.take()
    assert await workers(peer) == IDLE
    job = await peer.start()
    assert await workers(peer) == {"running": 1}
    await peer.post_done(job)
    assert await workers(peer) == IDLE


async def test_a_worker_that_says_it_is_unhealthy_is_until_it_says_otherwise(peer: Peer) -> None:
    await peer.start()
    for path, counts in (("?status=unhealthy", {"unhealthy": 1}), ("", {"running": 1})):
        assert await peer.request("GET", f"/ping/w{path}") == (200, {})
        assert await workers(peer) == counts


async def test_an_unhealthy_worker_is_well_once_it_asks_for_a_job(peer: Peer) -> None:
    await peer.get("/ping/w?status=unhealthy")
    assert await workers(peer) == {"unhealthy": 1}
    await peer.take()
    assert await workers(peer) == IDLE


async def test_a_worker_whose_start_failed_is_unhealthy_until_replaced(peer: Peer) -> None:
    for _ in range(2):
        await peer.request("GET", "/job-take/w", headers={"X-Worker-Start": "failed"})
        await peer.get("/ping/w")
        assert await workers(peer) == {"unhealthy": 1}
    peer.queue.lose(peer.worker)
    await peer.get("/ping/w")
    assert await workers(peer) == {"initializing": 1}
    await peer.take()
    assert await workers(peer) == IDLE
