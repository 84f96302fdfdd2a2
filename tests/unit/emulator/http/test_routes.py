"""The routes for workers and for callers."""

import asyncio

import pytest
from support.processes.background import poll_until
from support.processes.emulator_peer import Peer, with_options

WAIT = "wait must be a whole number from 1000 to 300000"
SYNC = '{"input": 1}'
holding_polls = with_options(long_poll_s=600)


async def test_a_job_goes_from_the_caller_to_the_worker_and_back(peer: Peer) -> None:
    body = {"id": "mine", "input": {"prompt": "hi"}, "policy": {"ttl": 10_000}}
    job = (await peer.post("/run", body))["id"]
    assert await peer.get("/job-take/w?gpu=x") == {**body, "id": job}
    assert await peer.status(job) == "IN_PROGRESS"
    await peer.post(f"/job-stream/w/{job}?gpu=x&isStream=false", {"output": "a"})
    await peer.post(f"/job-done/w/{job}?gpu=x&isStream=true", {"output": ["a"]})
    report = await peer.status_object(job)
    assert (report["id"], report["status"], report["output"]) == (job, "COMPLETED", ["a"])


@pytest.mark.parametrize("path", ["/job-take/w", "/job-take-batch/w?batch_size=2", "/job-stop/w"])
async def test_an_empty_queue_answers_204_when_the_poll_is_over(peer: Peer, path: str) -> None:
    assert await peer.request("GET", path) == (204, None)


@holding_polls
async def test_a_batch_waits_for_one_job_and_takes_the_oldest_up_to_its_size(peer: Peer) -> None:
    polling = await peer.poll("/job-take-batch/w?batch_size=8")
    job = await peer.run()
    assert await polling == (200, [{"id": job, "input": None}])
    jobs = [await peer.run(number) for number in range(5)]
    batches = [await peer.get("/job-take-batch/w?batch_size=3") for _ in range(2)]
    assert [[job["id"] for job in batch] for batch in batches] == [jobs[:3], jobs[3:]]


@holding_polls
async def test_a_cancelled_job_reaches_its_worker_once_through_the_stop_channel(peer: Peer) -> None:
    job = await peer.start()
    polling = asyncio.create_task(peer.jobs_to_stop())
    for _ in range(2):
        assert (await peer.post(f"/cancel/{job}"))["status"] == "CANCELLED"
    assert await polling == [job]
    assert peer.worker.pending_stops == []


async def test_a_job_that_is_cancelled_in_the_queue_is_not_handed_over(peer: Peer) -> None:
    first, second = [await peer.run() for _ in range(2)]
    await peer.post(f"/cancel/{first}")
    assert await peer.status_object(first) == {"id": first, "status": "CANCELLED"}
    assert [await peer.take(), await peer.take(), await peer.jobs_to_stop()] == [second, None, []]


@pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
async def test_posts_after_the_end_of_a_job_change_nothing(peer: Peer, end: str) -> None:
    job = await peer.start()
    if end == "cancel":
        await peer.post(f"/cancel/{job}")
    else:
        await peer.post_done(job, **{"output" if end == "complete" else "error": "first"})
    before = await peer.status_object(job)
    assert await peer.post_chunk(job, "late") == (200, {})
    for result in ({"output": "late"}, {"error": "late"}, {"status": "IN_PROGRESS", "output": 1}):
        assert await peer.post_done(job, **result) == (200, {})
    await peer.post(f"/cancel/{job}")
    assert await peer.status_object(job) == before
    assert peer.emulator.get_job(job).chunks == []


async def test_a_stream_is_read_in_order_and_only_once(peer: Peer) -> None:
    job = await peer.start()
    for output in ("a", {"b": 1}):
        await peer.post_chunk(job, output)
    both = {"status": "IN_PROGRESS", "stream": [{"output": "a"}, {"output": {"b": 1}}]}
    assert await peer.get(f"/stream/{job}") == both
    assert await peer.get(f"/stream/{job}") == {"status": "IN_PROGRESS", "stream": []}
    await peer.post_chunk(job, "c")
    await peer.post_done(job, output=[])
    assert await peer.get(f"/stream/{job}") == {"status": "COMPLETED", "stream": [{"output": "c"}]}
    assert await peer.get(f"/stream/{job}") == {"status": "COMPLETED", "stream": []}


@with_options(stream_poll_s=60)
async def test_reading_a_stream_waits_a_moment_for_the_next_chunk(peer: Peer) -> None:
    job = await peer.run()
    reading = asyncio.create_task(peer.stream(job))
    await peer.take()
    await peer.post_chunk(job, "a")
    assert await reading == ["a"]


@with_options(runsync_wait_s=0, long_poll_s=600)
async def test_runsync_waits_as_long_as_its_request_says(peer: Peer) -> None:
    waiting = asyncio.create_task(peer.post("/runsync?wait=20000", {"input": 1}))
    job = await peer.take()
    await peer.post_done(job, error="boom")
    report = await waiting
    assert (report["id"], report["status"], report["error"]) == (job, "FAILED", "boom")
    assert job.startswith("sync-")
    report = await peer.post("/runsync", {"input": 1})
    assert report == {"id": report["id"], "status": "IN_QUEUE"}


async def test_progress_shows_in_the_status_while_the_job_runs(peer: Peer) -> None:
    job = await peer.start()
    for progress in ("1/2", {"step": 2}):
        assert await peer.post_done(job, status="IN_PROGRESS", output=progress) == (200, {})
        report = await peer.status_object(job)
        assert (report["status"], report["output"]) == ("IN_PROGRESS", progress)
    await peer.post_done(job)
    report = await peer.status_object(job)
    assert (report["status"], "output" in report) == ("COMPLETED", False)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("GET", "/status/nope", "", 404, "there is no job 'nope'"),
        ("GET", "/nope", "", 404, "Not Found"),
        ("POST", "/../other/run", "{}", 404, "Not Found"),
        ("POST", "/run", "{", 400, "the body is not JSON"),
        ("POST", "/run", b"\xff\xfe", 400, "the body is not JSON"),
        ("POST", "/run", "[]", 400, "must be a JSON object"),
        ("POST", "/run", "{}", 400, "must have an `input`"),
        ("POST", "/runsync?wait=999", SYNC, 400, WAIT),
        ("POST", "/runsync?wait=300001", SYNC, 400, WAIT),
        pytest.param("POST", f"/runsync?wait={'9' * 5000}", SYNC, 400, WAIT, id="endless"),
        ("GET", "/job-take-batch/w?batch_size=-1", "", 400, "must be a whole number from 1"),
        ("POST", "/openai/v1/completions", "{", 400, "the body is not JSON"),
        ("GET", "/run", "", 405, "Method Not Allowed"),
        ("GET", "/../../v1/models", "", 404, "(the endpoint is /v2/local, and"),
        ("POST", "/v1/models", "{}", 404, "OpenAI's API /v2/local/openai/v1)"),
    ],
)
async def test_an_invalid_request_is_refused_with_the_reason_as_json(
    peer: Peer, method: str, path: str, body: str | bytes, status: int, message: str
) -> None:
    code, answer = await peer.request(method, path, data=body)
    assert (code, message in answer["error"]) == (status, True)


async def test_the_gateway_recommends_the_proxy_for_forms_and_other_methods(peer: Peer) -> None:
    form = {"content-type": "multipart/form-data; boundary=a"}
    for method, headers, status in (("DELETE", {}, 405), ("PUT", {}, 405), ("POST", form, 415)):
        code, answer = await peer.request(method, "/openai/v1/files", headers=headers)
        assert (code, answer["error"]["code"]) == (status, status)
        assert "python -m llm_worker_client proxy" in answer["error"]["message"]


@holding_polls
async def test_stopping_does_not_wait_for_long_polls(peer: Peer) -> None:
    polling = asyncio.create_task(peer.request_raw("GET", "/job-take/w"))
    await poll_until(lambda: "w" in peer.queue.workers)
    async with asyncio.timeout(300):
        await peer.emulator.stop()
        assert await polling == b""
