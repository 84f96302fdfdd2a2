"""The emulator's HTTP sides, with a client of its own in the place of the SDK."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from emulator import Emulator, Options, Status, slow_link


@pytest.fixture
async def emulator() -> AsyncIterator[Emulator]:
    async with Emulator(Options(take_poll_s=0.1, stream_poll_s=0.1)) as running:
        yield running


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


class Client:
    """Both a caller and a worker, over HTTP; every answer is (status, JSON or None)."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def request(self, method: str, path: str, **kwargs: Any) -> tuple[int, Any]:
        async with self.session.request(method, self.url + path, **kwargs) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if text else None

    async def get(self, path: str) -> Any:
        return (await self.request("GET", path))[1]

    async def post(self, path: str, body: object = None) -> Any:
        return (await self.request("POST", path, json=body))[1]

    async def run(self, given: object = None) -> str:
        return str((await self.post("/run", {"input": given}))["id"])


@pytest.fixture
def client(emulator: Emulator, http: aiohttp.ClientSession) -> Client:
    return Client(http, emulator.url)


async def polls(emulator: Emulator, worker: str) -> None:
    assert await emulator.queue.arrived.wait_for(lambda: worker in emulator.queue.workers, 5)


async def test_a_job_goes_from_the_caller_to_the_worker_and_back(client: Client) -> None:
    job_id = await client.run({"prompt": "hi"})
    assert await client.get("/job-take/w?gpu=x") == {"id": job_id, "input": {"prompt": "hi"}}
    assert (await client.get(f"/status/{job_id}"))["status"] == "IN_PROGRESS"
    await client.post(f"/job-stream/w/{job_id}?gpu=x&isStream=false", {"output": "a"})
    await client.post(f"/job-done/w/{job_id}?gpu=x&isStream=true", {"output": ["a"]})
    status = await client.get(f"/status/{job_id}")
    assert (status["status"], status["output"]) == ("COMPLETED", ["a"])


async def test_the_worker_gets_all_the_caller_sent_but_cannot_be_given_another_id(
    client: Client,
) -> None:
    job = await client.post("/run", {"id": "mine", "input": 1, "policy": {"ttl": 10_000}})
    taken = await client.get("/job-take/w")
    assert taken == {"id": job["id"], "input": 1, "policy": {"ttl": 10_000}}
    assert job["id"] != "mine"


async def test_an_empty_queue_answers_204_when_the_poll_is_over(client: Client) -> None:
    for path in ("/job-take/w", "/job-take-batch/w?batch_size=2", "/job-stop/w"):
        assert await client.request("GET", path) == (204, None)


async def test_a_long_poll_answers_as_soon_as_one_job_is_there(
    client: Client, emulator: Emulator
) -> None:
    polling = asyncio.create_task(client.get("/job-take-batch/w?batch_size=8"))
    await polls(emulator, "w")
    job_id = await client.run()
    assert [job["id"] for job in await polling] == [job_id]


async def test_a_batch_takes_as_many_as_there_are_up_to_its_size(client: Client) -> None:
    ids = [await client.run(number) for number in range(5)]
    first = await client.get("/job-take-batch/w?batch_size=3")
    second = await client.get("/job-take-batch/w?batch_size=3")
    assert [[job["id"] for job in batch] for batch in (first, second)] == [ids[:3], ids[3:]]


async def test_a_worker_that_hung_up_while_polling_gets_no_job(
    client: Client, emulator: Emulator
) -> None:
    polling = asyncio.create_task(client.get("/job-take/dead"))
    await polls(emulator, "dead")
    polling.cancel()
    await asyncio.wait([polling])
    job_id = await client.run()
    assert emulator.job(job_id).status is Status.IN_QUEUE
    assert (await client.get("/job-take/alive"))["id"] == job_id


async def test_a_job_whose_taker_dies_during_the_hand_over_is_not_lost(
    client: Client, emulator: Emulator, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection closes in the very moment in which the job arrives."""
    for _ in range(20):
        host, port = emulator.url.removeprefix("http://").split("/")[0].split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /v2/local/job-take/dead HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await asyncio.sleep(0.002)
        writer.transport.abort()
        job = emulator.queue.submit({"input": None})
        assert (await client.get("/job-take/alive"))["id"] == job.id
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_cancelled_job_is_told_to_its_worker_through_the_stop_channel(
    client: Client,
) -> None:
    job_id = await client.run()
    await client.get("/job-take/w")
    polling = asyncio.create_task(client.get("/job-stop/w"))
    cancelled = await client.post(f"/cancel/{job_id}")
    assert cancelled["status"] == "CANCELLED"
    assert await polling == {"jobsToStop": [job_id]}


async def test_what_a_worker_posts_for_a_cancelled_job_is_accepted_and_ignored(
    client: Client, emulator: Emulator
) -> None:
    job_id = await client.run()
    await client.get("/job-take/w")
    await client.post(f"/cancel/{job_id}")
    answer = await client.request("POST", f"/job-stream/w/{job_id}", json={"output": "late"})
    assert answer == (200, {})
    assert emulator.job(job_id).chunks == []


async def test_a_stream_is_read_in_order_and_only_once(client: Client) -> None:
    job_id = await client.run()
    await client.get("/job-take/w")
    for output in ("a", {"b": 1}):
        await client.post(f"/job-stream/w/{job_id}", {"output": output})
    path = f"/stream/{job_id}"
    both = {"status": "IN_PROGRESS", "stream": [{"output": "a"}, {"output": {"b": 1}}]}
    assert await client.get(path) == both
    assert await client.get(path) == {"status": "IN_PROGRESS", "stream": []}
    await client.post(f"/job-stream/w/{job_id}", {"output": "c"})
    await client.post(f"/job-done/w/{job_id}", {"output": []})
    assert await client.get(path) == {"status": "COMPLETED", "stream": [{"output": "c"}]}
    assert await client.get(path) == {"status": "COMPLETED", "stream": []}


async def test_reading_a_stream_waits_a_moment_for_the_next_chunk(client: Client) -> None:
    job_id = await client.run()
    reading = asyncio.create_task(client.get(f"/stream/{job_id}"))
    await client.get("/job-take/w")
    await client.post(f"/job-stream/w/{job_id}", {"output": "a"})
    assert (await reading)["stream"] == [{"output": "a"}]


async def test_runsync_answers_when_the_job_is_done(client: Client) -> None:
    waiting = asyncio.create_task(client.post("/runsync", {"input": 1}))
    job = await client.get("/job-take/w")
    await client.post(f"/job-done/w/{job['id']}", {"error": "boom"})
    report = await waiting
    assert report["id"].startswith("sync-")
    assert (report["status"], report["error"]) == ("FAILED", "boom")


async def test_runsync_answers_with_the_unfinished_job_when_the_wait_is_over(
    http: aiohttp.ClientSession,
) -> None:
    async with Emulator(Options(runsync_wait_s=0.02)) as emulator:
        report = await Client(http, emulator.url).post("/runsync", {"input": 1})
    assert report == {"id": report["id"], "status": "IN_QUEUE"}


async def test_health_counts_jobs_and_workers(client: Client) -> None:
    first, *_ = [await client.run() for _ in range(3)]
    for _ in range(2):
        await client.get("/job-take/w")
    await client.post(f"/job-done/w/{first}", {"output": 1})
    await client.get("/ping/other")
    assert await client.get("/health") == {
        "jobs": {"completed": 1, "failed": 0, "inProgress": 1, "inQueue": 1, "retried": 0},
        "workers": {
            "idle": 0,
            "initializing": 1,
            "ready": 0,
            "running": 1,
            "throttled": 0,
            "unhealthy": 0,
        },
    }


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("GET", "/status/nope", "", 404, "there is no job 'nope'"),
        ("GET", "/stream/nope", "", 404, "there is no job 'nope'"),
        ("POST", "/cancel/nope", "", 404, "there is no job 'nope'"),
        ("POST", "/job-done/w/nope", "{}", 404, "there is no job 'nope'"),
        ("GET", "/nope", "", 404, "Not Found"),
        ("POST", "/../other/run", "{}", 404, "Not Found"),
        ("POST", "/run", "{", 400, "the body is not JSON"),
        ("POST", "/run", b"\xff\xfe", 400, "the body is not JSON"),
        ("POST", "/run", "[]", 400, "must be a JSON object"),
        ("POST", "/run", "{}", 400, "must have an `input`"),
        (
            "POST",
            "/runsync?wait=soon",
            '{"input": 1}',
            400,
            "wait must be a whole number from 1000 to 300000",
        ),
        ("GET", "/job-take-batch/w?batch_size=-1", "", 400, "must be a whole number from 1"),
        ("POST", "/openai/v1/completions", "{", 400, "the body is not JSON"),
        ("GET", "/run", "", 405, "Method Not Allowed"),
        ("DELETE", "/openai/v1/models/m", "", 405, "Method Not Allowed"),
    ],
)
async def test_what_cannot_be_served_is_refused_as_json_that_says_why(
    client: Client, method: str, path: str, body: str | bytes, status: int, message: str
) -> None:
    given_status, answer = await client.request(method, path, data=body)
    assert given_status == status
    assert message in answer["error"]


async def test_a_slow_link_delays_the_workers_posts_but_not_what_they_say(
    http: aiohttp.ClientSession,
) -> None:
    async with Emulator(Options(faults=slow_link(0.2))) as emulator:
        client = Client(http, emulator.url)
        job_id = await client.run()
        await client.get("/job-take/w")
        loop = asyncio.get_running_loop()
        begun = loop.time()
        posting = asyncio.create_task(client.post(f"/job-stream/w/{job_id}", {"output": "a"}))
        assert (await client.get(f"/stream/{job_id}"))["stream"] == [{"output": "a"}]
        assert not posting.done()
        await posting
        assert loop.time() - begun >= 0.2


async def test_stopping_does_not_wait_for_long_polls(http: aiohttp.ClientSession) -> None:
    emulator = Emulator(Options(take_poll_s=60))
    await emulator.start()
    polling = asyncio.create_task(http.get(f"{emulator.url}/job-take/w"))
    await polls(emulator, "w")
    async with asyncio.timeout(2):
        await emulator.stop()
        with pytest.raises(aiohttp.ClientError):
            await polling
