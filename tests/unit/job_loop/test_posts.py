"""Answers reach the platform complete and in order despite failed calls, or the job fails."""

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from support.job_loops import HANG, UNPOSTABLE, Platform, serve_routes
from support.metrics import watch_metrics
from support.processes.background import HUNG_S, poll_until
from support.processes.emulator_peer import EmulatorClock

from emulator import Action, Call, Fault, Job, Status
from job_loop import delivery, wire
from job_loop.connections import PostRequest

NAN = float("nan")
CHUNKS = [{"number": number, "text": "ü\n"} for number in range(20)]
# A gateway has forwarded the call and got no response.
GATEWAY_TIMEOUTS = [{"do": Action.STATUS, "status": status} for status in (504, 520, 524)]
UNACKNOWLEDGED = [{"do": Action.RESET}, {"do": Action.LOSE}, *GATEWAY_TIMEOUTS]


def error_of(job: Job) -> dict[str, Any]:
    assert job.status is Status.FAILED
    error: dict[str, Any] = json.loads(job.error or "")["error"]
    return error


def chunk_outputs(job: Job) -> list[Any]:
    return [chunk.output for chunk in job.chunks]


@asynccontextmanager
async def refuse_chunks(platform: Platform, status: int) -> AsyncIterator[None]:
    """Respond to all chunks with a status and a ``Location``."""

    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=status, headers={"Location": "/taken"})

    async def accept(_: web.Request) -> web.Response:
        return web.json_response({})

    async with serve_routes(web.post("/refusing", refuse), web.get("/taken", accept)) as url:
        platform.wire.posts.chunk = PostRequest(f"{url}/refusing", {})
        yield


async def test_a_yielded_error_fails_the_job_with_its_text(platform: Platform) -> None:
    job = await platform.run("begun", {"error": '{"error": {"message": "ü"}}'}, "never")
    assert (job.status, job.error) == (Status.FAILED, '{"error": {"message": "ü"}}')
    assert chunk_outputs(job) == ["begun"]


async def test_a_whole_answer_is_posted_once_as_the_result(platform: Platform) -> None:
    job = await platform.run({"text": "ü"}, whole=True)
    assert (job.status, job.output, job.chunks) == (Status.COMPLETED, [{"text": "ü"}], [])
    worker = platform.emulator.queue.get_worker("w")
    assert (worker.chunks, worker.results, platform.answers.records[0].chunks) == (0, 1, 1)


async def test_half_of_a_surrogate_pair_is_posted_as_a_question_mark(platform: Platform) -> None:
    job = await platform.run({"text": "a\ud83d"}, "\udc00", stream=True)
    assert job.status is Status.COMPLETED
    assert job.output == chunk_outputs(job) == [{"text": "a?"}, "?"]


@pytest.mark.parametrize("status", [500, 429, 408])
@pytest.mark.parametrize("call", [Call.STREAM, Call.DONE])
async def test_a_failed_post_is_retried(platform: Platform, call: Call, status: int) -> None:
    increases = watch_metrics("worker_posts_retried_total", "worker_delivery_seconds_count")
    platform.emulator.faults.add(Fault(on=call, do=Action.STATUS, status=status, calls=3))
    job = await platform.run(*CHUNKS, stream=True)
    assert (job.status, job.output, chunk_outputs(job)) == (Status.COMPLETED, CHUNKS, CHUNKS)
    assert platform.answers.records[0].posts_retried == 3
    await platform.wait_until_idle()
    # A retried post is one delivery.
    assert increases() == [3, len(CHUNKS) + 1]


async def test_a_stream_continues_after_refused_connections(platform: Platform) -> None:
    received = []

    async def take(request: web.Request) -> web.Response:
        received.append(json.loads(await request.read())["output"])
        return web.json_response({})

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/chunks"
        platform.wire.posts.chunk = PostRequest(url, {})
        job = platform.submit(*CHUNKS, stream=True)
        await platform.wait_until_begun(job)
        await poll_until(lambda: job.has_ended or platform.answers.records[0].posts_retried > 2)
        async with serve_routes(web.post("/chunks", take), bound=bound):
            assert await job.wait_for_end(HUNG_S)
    assert (job.status, job.output, received) == (Status.COMPLETED, CHUNKS, CHUNKS)


@pytest.mark.parametrize("fault", UNACKNOWLEDGED)
async def test_a_result_is_posted_until_it_is_acknowledged(
    platform: Platform, fault: dict[str, Any]
) -> None:
    platform.emulator.faults.add(Fault(on=Call.DONE, calls=3, **fault))
    job = await platform.run(*CHUNKS, stream=True)
    assert (job.status, job.output) == (Status.COMPLETED, CHUNKS)


@pytest.mark.parametrize("fault", UNACKNOWLEDGED)
async def test_a_stream_fails_retryably_when_a_chunk_may_be_lost(
    platform: Platform, fault: dict[str, Any]
) -> None:
    job = platform.submit(*CHUNKS, HANG, stream=True)
    assert await anext(job.follow_chunks())
    platform.emulator.faults.add(Fault(on=Call.STREAM, calls=1, **fault))
    assert await job.wait_for_end(HUNG_S)
    error = error_of(job)
    assert (error["code"], error["retryable"], error["request_id"]) == (503, True, job.id)
    assert chunk_outputs(job) == CHUNKS[: len(job.chunks)]
    assert platform.answers.closed_jobs == [job.id]


@pytest.mark.parametrize("action", [Action.RESET, Action.LOSE])
async def test_the_result_of_a_job_without_streaming_includes_lost_chunks(
    platform: Platform, action: Action
) -> None:
    platform.emulator.faults.add(Fault(on=Call.STREAM, do=action, calls=1))
    job = await platform.run("whole")
    assert (job.status, job.output) == (Status.COMPLETED, ["whole"])
    assert len(job.chunks) <= 1


async def test_a_chunk_that_is_not_acknowledged_in_time_fails_its_stream(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "POST_TIMEOUT_S", 0.05)
    platform.emulator.faults.add(Fault(on=Call.STREAM, do=Action.DELAY, delay_s=HUNG_S, calls=1))
    job = await platform.run("begun", HANG, stream=True)
    assert error_of(job)["retryable"]


@pytest.mark.parametrize("status", [302, 400, 413])
async def test_a_refused_chunk_fails_its_stream(platform: Platform, status: int) -> None:
    async with refuse_chunks(platform, status):
        job = await platform.run("begun", HANG, stream=True)
    assert error_of(job)["code"] == 503


@pytest.mark.parametrize("status", [302, 404])
async def test_a_result_includes_refused_chunks(platform: Platform, status: int) -> None:
    async with refuse_chunks(platform, status):
        job = await platform.run("whole")
    assert (job.status, job.output) == (Status.COMPLETED, ["whole"])


@pytest.mark.parametrize("status", [300, 399])
async def test_a_result_is_posted_until_the_response_is_no_redirect(
    platform: Platform, status: int
) -> None:
    results, statuses = [], [status, status, 200]

    async def respond(request: web.Request) -> web.Response:
        results.append(await request.json())
        return web.Response(status=statuses.pop(0), headers={"Location": "/elsewhere"})

    async with serve_routes(web.post("/done", respond)) as url:
        platform.wire.posts.result = PostRequest(f"{url}/done", {})
        await platform.wait_until_begun(platform.submit("whole", whole=True))
        await platform.wait_until_idle()
    assert results == [{"output": ["whole"]}] * 3


async def test_a_refused_result_frees_the_slot(
    platform: Platform, caplog: pytest.LogCaptureFixture
) -> None:
    platform.emulator.faults.add(Fault(on=Call.DONE, do=Action.STATUS, status=404, calls=1))
    platform.submit("whole")
    await poll_until(lambda: "could not be delivered" in caplog.text)
    assert (await platform.run("next")).output == ["next"]


@pytest.mark.parametrize("value", [UNPOSTABLE, NAN, {"logprobs": [0, NAN]}])
async def test_a_yield_that_cannot_be_posted_fails_its_job(platform: Platform, value: Any) -> None:
    job = await platform.run("begun", value, stream=True)
    assert error_of(job)["code"] == 500
    assert platform.answers.records[0].status == 500


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [({"executionTimeout": 100_000}, 100), (None, 600), ({"executionTimeout": "soon"}, 600)],
)
async def test_posts_stop_at_the_jobs_time_limit_or_after_ten_minutes(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, policy: object, seconds: float
) -> None:
    clock = EmulatorClock()
    monkeypatch.setattr(delivery, "time", SimpleNamespace(monotonic=clock))
    platform.emulator.faults.add(Fault(on=Call.DONE, do=Action.STATUS))
    # The emulator's own time limit is separate from the policy in the payload.
    job = platform.submit("whole", policy=policy)
    await platform.wait_until_begun(job)
    (record,) = platform.answers.records
    await poll_until(lambda: record.posts_retried > 0)
    clock.advance(seconds / 2)
    retried = record.posts_retried
    await poll_until(lambda: record.posts_retried > retried + 2)
    clock.advance(seconds / 2)
    await platform.wait_until_idle()
    assert record.status == 504


async def test_a_result_that_is_too_large_fails_its_job(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "RESULT_LIMIT_BYTES", 1000)
    job = await platform.run("a" * 600, "b" * 600, stream=True)
    assert error_of(job)["code"] == 413
    assert "more than the 1,000 bytes" in error_of(job)["message"]
    assert platform.answers.closed_jobs == [job.id]


async def test_jobs_survive_an_outage_of_the_platform(
    platform: Platform, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(wire, "OUTAGE_S", 0.1)
    for call in (Call.STREAM, Call.DONE, Call.TAKE):
        platform.emulator.faults.add(Fault(on=call, do=Action.STATUS))
    jobs = [platform.submit(*CHUNKS, stream=True) for _ in range(8)]
    await poll_until(lambda: "calls to the platform fail" in caplog.text)
    platform.emulator.faults.clear()
    for job in jobs:
        assert await job.wait_for_end(HUNG_S)
        assert (job.status, job.output, chunk_outputs(job)) == (Status.COMPLETED, CHUNKS, CHUNKS)
    assert caplog.text.count("calls to the platform fail") == 1
    assert caplog.text.count("succeed again") == 1


def test_pauses_grow_with_each_failure_up_to_some_seconds() -> None:
    for failures, least in ((1, 0.1), (2, 0.2), (3, 0.4), (6, 3.2), (7, 5.0), (10_000, 5.0)):
        assert least <= wire.backoff_s(failures) <= least + 0.7


async def test_progress_is_posted_once(platform: Platform) -> None:
    job = platform.submit(HANG)
    await platform.wait_until_begun(job)
    await platform.wire.post_progress({"id": job.id}, {"done": 1})
    assert job.progress == {"done": 1}
