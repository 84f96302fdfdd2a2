"""The control routes: timings of jobs, and workers."""

import itertools
import signal
import time

import pytest
from support.processes.emulator_peer import Peer

from emulator import job as jobs


async def test_the_timings_of_a_job_have_the_time_of_each_step_and_the_bytes_of_each_chunk(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Seconds between the clock of the process and Unix time.
    monkeypatch.setattr(jobs, "_MONOTONIC_TO_UNIX_S", 1e9)
    start = time.monotonic()
    job = await peer.run()
    queued = await peer.get(f"/control/jobs/{job}")
    assert start <= queued["queued_at"] - 1e9 + 1e-5 <= time.monotonic() + 1e-4
    never = dict.fromkeys(("worker", "taken_s", "first_chunk_s", "done_s"))
    begins = {"id": job, "queued_at": queued["queued_at"]}
    assert queued == {**begins, "status": "IN_QUEUE", "chunks": [], **never}
    peer.advance_clock(60)
    await peer.take()
    for body in ('{"output": "a"}', '{"output":  "ü" }'):
        peer.advance_clock(60)
        await peer.request("POST", f"/job-stream/w/{job}", data=body.encode())
    peer.advance_clock(60)
    await peer.post_done(job, output=["a", "ü"])
    final = await peer.get(f"/control/jobs/{job}")
    assert final == {**final, **begins, "status": "COMPLETED", "worker": "w"}
    first, second = final["chunks"]
    assert final["first_chunk_s"] == first["at_s"]
    assert [first["bytes"], second["bytes"]] == [15, 18]
    times = [0, final["taken_s"], first["at_s"], second["at_s"], final["done_s"]]
    assert min(later - earlier for earlier, later in itertools.pairwise(times)) >= 59.9999


async def test_all_jobs_are_listed_with_the_number_of_their_chunks(peer: Peer) -> None:
    job = await peer.start()
    for output in "abc":
        await peer.post_chunk(job, output)
    await peer.post_done(job, error="boom")
    alone, waiting = await peer.get(f"/control/jobs/{job}"), await peer.run()
    first, second = (await peer.get("/control/jobs"))["jobs"]
    assert first == {**alone, "chunks": 3}
    assert (second["id"], second["chunks"]) == (waiting, 0)
    # A retry resets the timings.
    await peer.post(f"/retry/{job}")
    again = await peer.get(f"/control/jobs/{job}")
    assert (again["taken_s"], again["done_s"], again["chunks"]) == (None, None, [])
    assert again["queued_at"] > alone["queued_at"]


COUNTS = ("pings", "takes", "jobs", "chunks", "results", "late_posts", "late_chunks")


async def test_workers_are_listed_with_their_states_and_counts(peer: Peer) -> None:
    for _ in range(2):
        await peer.get("/ping/sick?status=unhealthy")
    await peer.take("able")
    nothing: dict[str, object] = dict.fromkeys(("ready", "unhealthy", "frozen"), False)
    nothing |= {"pid": None, "starts": 0, **dict.fromkeys(COUNTS, 0)}
    sick = {**nothing, "id": "sick", "unhealthy": True, "pings": 2}
    able = {**nothing, "id": "able", "ready": True, "takes": 1}
    assert await peer.get("/control/workers") == {"workers": [sick, able]}


async def counts_of(peer: Peer) -> dict[str, int]:
    (worker,) = (await peer.get("/control/workers"))["workers"]
    return {name: worker[name] for name in COUNTS if worker[name]}


async def test_a_workers_takes_jobs_chunks_and_results_are_counted_and_late_ones_separately(
    peer: Peer,
) -> None:
    done, cancelled = [await peer.run() for _ in range(2)]
    await peer.get("/job-take-batch/w?batch_size=2")
    await peer.take()
    for _ in range(3):
        await peer.post_chunk(done, "a")
    await peer.post_done(done, status="IN_PROGRESS", output="half")
    await peer.post_done(done, output=["a"])
    await peer.post(f"/cancel/{cancelled}")
    assert await counts_of(peer) == {"takes": 2, "jobs": 2, "chunks": 3, "results": 1}
    for job in (done, cancelled):
        await peer.post_done(job, output=1)
        await peer.post_chunk(job, "a")
    late = {"late_posts": 4, "late_chunks": 1}
    assert await counts_of(peer) == {"takes": 2, "jobs": 2, "chunks": 5, "results": 3, **late}


@pytest.mark.parametrize("call", ["signal", "freeze"])
async def test_a_worker_that_was_started_by_hand_is_not_found(peer: Peer, call: str) -> None:
    await peer.get("/ping/by-hand")
    path = f"/control/workers/by-hand/{call}"
    error = f"POST {path}: this endpoint runs no such worker"
    answer = await peer.request("POST", path, json={"signal": "SIGTERM"})
    assert answer == (404, {"error": error})


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("workers/w/signal", {"signal": "SIGUSR1"}, "signal"),
        ("workers/w/signal", {"signal": "SIGKILL", "after": 1}, "after"),
        ("workers/w/freeze", {"second": 1}, "second"),
        ("workers/w/freeze", {"seconds": 0}, "seconds"),
        ("outage", {"seconds": 0}, "seconds"),
    ],
)
async def test_an_invalid_request_is_refused_by_its_field_and_has_no_effect(
    peer: Peer, signals: list[signal.Signals], path: str, body: object, field: str
) -> None:
    status, answer = await peer.request("POST", f"/control/{path}", json=body)
    assert (status, f"{field}: " in answer["error"]) == (400, True)
    async with peer.session.get(f"{peer.emulator.worker_url}/ping/w") as pinged:
        assert (pinged.status, signals) == (200, [])
