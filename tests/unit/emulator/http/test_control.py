"""The control routes: the timings of jobs, the workers."""

import asyncio
import itertools
import json
import time
from typing import Any

import pytest
from support.processes.emulator_client import Client, emulator_client


async def test_a_jobs_timings_tell_when_each_thing_happened_and_its_chunks_with_their_bytes() -> (
    None
):
    async with emulator_client() as client:
        begun = time.monotonic()
        job = await client.run()
        queued: dict[str, Any] = {
            "id": job,
            "status": "IN_QUEUE",
            "worker": None,
            "taken_s": None,
            "first_chunk_s": None,
            "done_s": None,
            "chunks": [],
        }
        timings = await client.get(f"/control/jobs/{job}")
        assert timings == {**queued, "queued_at": timings["queued_at"]}
        # Unix time, whatever has happened to the clock since the emulator's start.
        assert abs(timings["queued_at"] - time.time()) < 86_400
        await asyncio.sleep(0.01)
        await client.get("/job-take/w")
        for body in ('{"output": "a"}', '{"output":  "ü" }'):
            await asyncio.sleep(0.01)
            await client.request("POST", f"/job-stream/w/{job}", data=body.encode())
        await asyncio.sleep(0.01)
        await client.post_done(job, output=["a", "ü"])
        passed = time.monotonic() - begun
        final = await client.get(f"/control/jobs/{job}")
    assert (final["id"], final["status"], final["worker"]) == (job, "COMPLETED", "w")
    assert final["queued_at"] == timings["queued_at"]
    first, second = final["chunks"]
    assert final["first_chunk_s"] == first["at_s"]
    assert [first["bytes"], second["bytes"]] == [15, 18]
    times = [0, final["taken_s"], first["at_s"], second["at_s"], final["done_s"]]
    steps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert min(steps) >= 0.0099
    assert final["done_s"] <= passed


async def test_all_jobs_are_listed_with_the_number_of_their_chunks() -> None:
    async with emulator_client() as client:
        assert await client.get("/control/jobs") == {"jobs": []}
        done = await client.start()
        for output in "abc":
            await client.post_chunk(done, output)
        await client.post_done(done, output=list("abc"))
        waiting = await client.run()
        jobs = (await client.get("/control/jobs"))["jobs"]
        assert [(job["id"], job["chunks"]) for job in jobs] == [(done, 3), (waiting, 0)]
        shown = await client.get(f"/control/jobs/{done}")
        assert jobs[0] == {**shown, "chunks": 3}


async def test_the_timings_of_a_retried_job_are_those_of_its_last_run() -> None:
    async with emulator_client() as client:
        job = await client.start()
        await client.post_chunk(job, "a")
        await client.post_done(job, error="boom")
        before = await client.get(f"/control/jobs/{job}")
        await client.post(f"/retry/{job}")
        after = await client.get(f"/control/jobs/{job}")
        assert (after["taken_s"], after["done_s"], after["chunks"]) == (None, None, [])
        assert after["queued_at"] > before["queued_at"]


NOTHING_DONE = dict.fromkeys(("takes", "jobs", "chunks", "results", "late_posts", "late_chunks"), 0)


async def test_workers_are_listed_with_what_they_said() -> None:
    async with emulator_client() as client:
        assert await client.get("/control/workers") == {"workers": []}
        for _ in range(2):
            await client.get("/ping/sick?status=unhealthy")
        await client.get("/job-take/able")
        by_hand = {"starts": 0, "pid": None, "frozen": False}
        assert await client.get("/control/workers") == {
            "workers": [
                {"id": "sick", "ready": False, "unhealthy": True, "pings": 2, **by_hand}
                | NOTHING_DONE,
                {"id": "able", "ready": True, "unhealthy": False, "pings": 0, **by_hand}
                | NOTHING_DONE
                | {"takes": 1},
            ]
        }


async def counts_of(client: Client) -> dict[str, int]:
    (worker,) = (await client.get("/control/workers"))["workers"]
    return {name: worker[name] for name in NOTHING_DONE}


async def test_a_workers_takes_jobs_chunks_and_results_are_counted() -> None:
    async with emulator_client() as client:
        for _ in range(2):
            await client.run()
        first, second = await client.get("/job-take-batch/w?batch_size=2")
        await client.get("/job-take/w")
        for _ in range(3):
            await client.post_chunk(first["id"], "a")
        await client.post_done(first["id"], status="IN_PROGRESS", output="half")
        await client.post_done(first["id"], output=["a"])
        await client.post_done(second["id"], error="boom")
        assert await counts_of(client) == {
            **NOTHING_DONE,
            "takes": 2,
            "jobs": 2,
            "chunks": 3,
            "results": 2,
        }


async def test_posts_for_a_job_that_has_ended_are_counted_as_late() -> None:
    async with emulator_client() as client:
        done, cancelled = [await client.start() for _ in range(2)]
        await client.post_done(done, output=1)
        await client.post_done(done, output=1)
        await client.post_chunk(done, "a")
        await client.post(f"/cancel/{cancelled}")
        await client.post_chunk(cancelled, "a")
        await client.post_done(cancelled, output=1)
        assert await counts_of(client) == {
            "takes": 2,
            "jobs": 2,
            "chunks": 2,
            "results": 3,
            "late_posts": 4,
            "late_chunks": 1,
        }


@pytest.mark.parametrize(
    ("method", "path", "message"),
    [
        ("GET", "/control/jobs/nope", "there is no job 'nope'"),
        ("POST", "/control/workers/nope/signal", "no such worker is run by this endpoint"),
        ("POST", "/control/workers/by-hand/signal", "no such worker is run by this endpoint"),
        ("POST", "/control/workers/by-hand/freeze", "no such worker is run by this endpoint"),
    ],
)
async def test_what_is_not_there_is_not_found(method: str, path: str, message: str) -> None:
    async with emulator_client() as client:
        await client.get("/ping/by-hand")
        body = json.dumps({"signal": "SIGTERM"})
        status, answer = await client.request(method, path, data=body)
        assert (status, answer["error"]) == (404, f"{method} {path}: {message}")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "faults"),
        ("DELETE", "faults"),
        ("POST", "workers/worker-1/signal"),
        ("POST", "workers/worker-1/freeze"),
        ("POST", "outage"),
    ],
)
async def test_a_web_page_can_break_nothing(method: str, path: str) -> None:
    """Any page open in a browser could send such a request."""
    async with emulator_client() as client:
        headers = {"Origin": "https://example.com"}
        body = json.dumps({"on": "take", "do": "reset"})
        status, _ = await client.request(method, f"/control/{path}", data=body, headers=headers)
        assert status == 403
        assert await client.get("/control/faults") == {"faults": []}
