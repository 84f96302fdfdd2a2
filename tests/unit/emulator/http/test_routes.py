"""The routes for workers and for callers."""

import asyncio
import json
import time
import urllib.request
from collections.abc import AsyncIterator

import pytest
from support.processes.emulator_client import Client, emulator_client

from emulator import Emulator, slow_link

WAIT = "wait must be a whole number from 1000 to 300000"


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with emulator_client() as client:
        yield client


@pytest.fixture
def emulator(client: Client) -> Emulator:
    return client.emulator


async def wait_for_poll(emulator: Emulator, worker: str) -> None:
    assert await emulator.queue.arrived.wait_for(lambda: worker in emulator.queue.workers, 60)


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


async def test_a_long_poll_answers_as_soon_as_one_job_is_there() -> None:
    async with emulator_client(take_poll_s=600) as client:
        polling = asyncio.create_task(client.get("/job-take-batch/w?batch_size=8"))
        await wait_for_poll(client.emulator, "w")
        job_id = await client.run()
        assert [job["id"] for job in await polling] == [job_id]


async def test_a_batch_takes_as_many_as_there_are_up_to_its_size(client: Client) -> None:
    ids = [await client.run(number) for number in range(5)]
    first = await client.get("/job-take-batch/w?batch_size=3")
    second = await client.get("/job-take-batch/w?batch_size=3")
    assert [[job["id"] for job in batch] for batch in (first, second)] == [ids[:3], ids[3:]]


async def test_a_worker_that_hung_up_while_polling_gets_no_job() -> None:
    async with emulator_client(take_poll_s=600) as client:
        polling = asyncio.create_task(client.get("/job-take/dead"))
        await wait_for_poll(client.emulator, "dead")
        polling.cancel()
        await asyncio.wait([polling])
        job_id = await client.run()
        assert (await client.status(job_id))["status"] == "IN_QUEUE"
        assert (await client.get("/job-take/alive"))["id"] == job_id


async def test_a_job_whose_taker_dies_during_the_hand_over_is_not_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The connection closes at the moment when the job arrives."""
    async with emulator_client(take_poll_s=600) as client:
        host, port = client.emulator.root_url.removeprefix("http://").split(":")
        for number in range(20):
            _, writer = await asyncio.open_connection(host, int(port))
            take = f"GET /v2/local/job-take/dead-{number} HTTP/1.1\r\nHost: localhost\r\n\r\n"
            writer.write(take.encode())
            await wait_for_poll(client.emulator, f"dead-{number}")
            writer.transport.abort()
            job = client.emulator.queue.submit({"input": None})
            assert (await client.get("/job-take/alive"))["id"] == job.id
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_worker_that_closes_its_connection_once_it_has_the_job_keeps_it() -> None:
    async with emulator_client(take_poll_s=600) as client:
        url = client.url("/job-take/w")

        def take() -> object:
            with urllib.request.urlopen(url) as answer:
                return json.load(answer)

        taking = asyncio.create_task(asyncio.to_thread(take))
        await wait_for_poll(client.emulator, "w")
        job = client.emulator.queue.submit({"input": 1})
        # The emulator is busy right after its answer.
        asyncio.get_running_loop().call_soon(time.sleep, 0.1)
        assert await taking == {"id": job.id, "input": 1}
        assert (await client.status(job.id))["status"] == "IN_PROGRESS"


async def test_a_cancelled_job_reaches_its_worker_through_the_stop_channel() -> None:
    async with emulator_client(take_poll_s=600) as client:
        job_id = await client.start()
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


async def test_reading_a_stream_waits_a_moment_for_the_next_chunk() -> None:
    async with emulator_client(stream_poll_s=60) as client:
        job_id = await client.run()
        reading = asyncio.create_task(client.get(f"/stream/{job_id}"))
        await client.get("/job-take/w")
        await client.post_chunk(job_id, "a")
        assert (await reading)["stream"] == [{"output": "a"}]


async def test_runsync_answers_when_the_job_is_done() -> None:
    async with emulator_client(take_poll_s=600) as client:
        waiting = asyncio.create_task(client.post("/runsync", {"input": 1}))
        job = await client.get("/job-take/w")
        await client.post_done(job["id"], error="boom")
        report = await waiting
    assert report["id"].startswith("sync-")
    assert (report["status"], report["error"]) == ("FAILED", "boom")


async def test_runsync_answers_with_the_unfinished_job_when_the_wait_is_over() -> None:
    async with emulator_client(runsync_wait_s=0.02) as client:
        report = await client.post("/runsync", {"input": 1})
    assert report == {"id": report["id"], "status": "IN_QUEUE"}


async def test_runsync_waits_as_long_as_its_request_says() -> None:
    async with emulator_client(runsync_wait_s=0, take_poll_s=10) as client:
        waiting = asyncio.create_task(client.post("/runsync?wait=20000", {"input": 1}))
        job = await client.get("/job-take/w")
        await client.post_done(job["id"], output=2)
        assert (await waiting)["output"] == 2


async def test_progress_shows_in_the_status_while_the_job_runs(client: Client) -> None:
    job_id = await client.start()
    for progress in ("1/2", {"step": 2}):
        answer = await client.post_done(job_id, status="IN_PROGRESS", output=progress)
        assert answer == (200, {})
        status = await client.status(job_id)
        assert (status["status"], status["output"]) == ("IN_PROGRESS", progress)
    await client.post_done(job_id)
    status = await client.status(job_id)
    assert (status["status"], "output" in status) == ("COMPLETED", False)


async def test_the_status_shows_how_long_a_job_waited_and_ran_in_milliseconds(
    client: Client,
) -> None:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    job_id = await client.run()
    assert await client.status(job_id) == {"id": job_id, "status": "IN_QUEUE"}
    await asyncio.sleep(0.05)
    await client.get("/job-take/w")
    running = await client.status(job_id)
    await asyncio.sleep(0.02)
    await client.post_done(job_id, output=1)
    report = await client.status(job_id)
    passed_ms = (loop.time() - begun) * 1000
    assert (running["workerId"], running["delayTime"]) == ("w", report["delayTime"])
    assert "executionTime" not in running
    assert report["delayTime"] >= 49
    assert report["executionTime"] >= 19
    assert report["delayTime"] + report["executionTime"] <= passed_ms + 1


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
        ("POST", "/runsync?wait=soon", '{"input": 1}', 400, WAIT),
        ("POST", "/runsync?wait=999", '{"input": 1}', 400, WAIT),
        ("POST", "/runsync?wait=300001", '{"input": 1}', 400, WAIT),
        pytest.param(
            "POST", f"/runsync?wait={'9' * 5000}", '{"input": 1}', 400, WAIT, id="endless"
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
    code, answer = await client.request(method, path, data=body)
    assert code == status
    assert message in answer["error"]


async def test_a_slow_link_delays_the_workers_posts_but_not_what_they_say() -> None:
    async with emulator_client(faults=slow_link(60), stream_poll_s=10) as client:
        job_id = await client.start()
        posting = asyncio.create_task(client.post_chunk(job_id, "a"))
        assert (await client.get(f"/stream/{job_id}"))["stream"] == [{"output": "a"}]
        assert not posting.done()
        client.let_pass(60)
        assert await posting == (200, {})


async def test_stopping_does_not_wait_for_long_polls() -> None:
    async with emulator_client(take_poll_s=600) as client:
        polling = asyncio.create_task(client.raw("GET", "/job-take/w"))
        await wait_for_poll(client.emulator, "w")
        async with asyncio.timeout(60):
            await client.emulator.stop()
            assert await polling == b""
