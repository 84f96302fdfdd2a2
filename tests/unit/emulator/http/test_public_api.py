"""The routes for callers and their workers, and the callers' webhooks."""

import asyncio
import itertools
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from support.job_loops import serve_routes
from support.processes.background import poll_until
from support.processes.emulator_peer import Peer, emulator_peer, with_options

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
    assert peer.queue.jobs[job].chunks == []


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
        ("POST", "/../other/run", "{}", 404, "Not Found"),
        ("POST", "/run", b"\xff\xfe", 400, "the body is not JSON"),
        ("POST", "/run", "[]", 400, "must be a JSON object"),
        ("POST", "/run", "{}", 400, "must have an `input`"),
        ("POST", "/runsync?wait=999", SYNC, 400, WAIT),
        ("POST", "/runsync?wait=300001", SYNC, 400, WAIT),
        pytest.param("POST", f"/runsync?wait={'9' * 5000}", SYNC, 400, WAIT, id="endless"),
        ("GET", "/job-take-batch/w?batch_size=-1", "", 400, "must be a whole number from 1"),
        ("GET", "/run", "", 405, "Method Not Allowed"),
        (
            *("POST", "/v1/models", "{}", 404),
            "(the endpoint is /v2/local, and OpenAI's API /v2/local/openai/v1)",
        ),
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


# Webhooks: posts of a job's status object when it ends:


LONG_S = 60.0
UNACKNOWLEDGED = "the webhook of job {} was not acknowledged: {}"


@dataclass
class Receiver:
    """Records posts and responds with the statuses in order; the last one repeats."""

    statuses: list[int]
    url: str = ""
    posts: list[Any] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        if request.method == "GET":  # where a redirect leads
            return web.Response()
        self.times.append(time.monotonic())
        self.posts.append(await request.json())
        status = self.statuses.pop(0) if self.statuses[1:] else self.statuses[0]
        return web.Response(status=status, headers={"Location": "/hook"})

    async def wait_for_posts(self, count: int) -> None:
        await poll_until(lambda: len(self.posts) >= count)


@asynccontextmanager
async def start_receiver(*statuses: int) -> AsyncIterator[Receiver]:
    receiver = Receiver([*statuses])
    async with serve_routes(web.route("*", "/hook", receiver.answer)) as url:
        receiver.url = f"{url}/hook?of=job"
        yield receiver


@pytest.fixture
def unreachable_url() -> Iterator[str]:
    """Return a URL at which no server listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/hook"


async def complete(peer: Peer, job: str) -> None:
    await peer.take()
    await peer.post_done(job, output=["a"])


async def fail(peer: Peer, job: str) -> None:
    await peer.take()
    await peer.post_done(job, error="boom")


async def cancel(peer: Peer, job: str) -> None:
    await peer.post(f"/cancel/{job}")


async def expire(peer: Peer, job: str) -> None:
    await peer.get(f"/status/{job}?ttl=0")


@pytest.mark.parametrize(
    ("end", "status"),
    [(complete, "COMPLETED"), (fail, "FAILED"), (cancel, "CANCELLED"), (expire, "TIMED_OUT")],
)
async def test_a_webhook_gets_a_jobs_status_object_once_when_it_ends(
    peer: Peer, end: Callable[[Peer, str], Awaitable[object]], status: str
) -> None:
    async with start_receiver(200) as receiver:
        job = await peer.run(webhook=receiver.url)
        await end(peer, job)
        await receiver.wait_for_posts(1)
        assert receiver.posts == [await peer.status_object(job)]
        assert receiver.posts[0]["status"] == status


@pytest.mark.parametrize(
    ("statuses", "posts", "warning"),
    [
        ([201, 200], 2, ""),
        ([500, 204, 404, 200], 3, UNACKNOWLEDGED.format("{}", 404)),
        pytest.param(
            [302], 3, UNACKNOWLEDGED.format("{}", 302), id="a redirect, which would lead to a GET"
        ),
    ],
)
@with_options(webhook_retry_delay_s=0.02)
async def test_a_webhook_is_called_up_to_three_times_until_it_responds_with_200(
    peer: Peer, caplog: pytest.LogCaptureFixture, statuses: list[int], posts: int, warning: str
) -> None:
    async with start_receiver(*statuses) as receiver:
        job = await peer.run(webhook=receiver.url)
        await complete(peer, job)
        await receiver.wait_for_posts(posts)
        await poll_until(lambda: warning.format(job) in caplog.text)
        # A further post would arrive before the other job's.
        peer.advance_clock(0.02)
        await complete(peer, await peer.run(webhook=receiver.url))
        await receiver.wait_for_posts(posts + 1)
        own = [post for post in receiver.posts if post["id"] == job]
        assert own == [await peer.status_object(job)] * posts
        times = itertools.pairwise(receiver.times[:posts])
        assert min(later - earlier for earlier, later in times) >= 0.019
    assert bool(warning) == ("acknowledged" in caplog.text)


@with_options(webhook_retry_delay_s=0.01)
async def test_an_unreachable_webhook_is_abandoned_with_a_warning(
    peer: Peer, unreachable_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = await peer.run(webhook=unreachable_url)
    await complete(peer, job)
    await poll_until(lambda: UNACKNOWLEDGED.format(job, "Cannot connect") in caplog.text)
    assert await peer.status(job) == "COMPLETED"


async def test_a_stopped_emulator_calls_no_webhook() -> None:
    async with start_receiver(500) as receiver, emulator_peer(webhook_retry_delay_s=LONG_S) as peer:
        completed, running = [await peer.start(webhook=receiver.url) for _ in range(2)]
        await peer.post_done(completed, output=1)
        await receiver.wait_for_posts(1)
        await peer.emulator.stop()
        peer.queue.cancel(peer.queue.jobs[running])
        peer.advance_clock(LONG_S)
        # A further post would arrive before this one.
        async with peer.session.post(receiver.url, json="ours"):
            assert receiver.posts[1:] == ["ours"]


@pytest.mark.parametrize("webhook", ["ftp://example.com/hook", "http://", 5])
async def test_a_webhook_that_is_not_a_url_is_refused(peer: Peer, webhook: object) -> None:
    status, answer = await peer.request("POST", "/run", json={"input": 1, "webhook": webhook})
    assert (status, "/run: webhook: " in answer["error"]) == (400, True)
    assert peer.queue.jobs == {}
