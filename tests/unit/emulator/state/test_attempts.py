"""A job's second attempt, and what the first one leaves behind: readers, posts, stops."""

import asyncio

from support.processes.emulator_client import Client, emulator_client


async def start_duplicated(client: Client) -> str:
    """Start a job on worker w that will be delivered once more."""
    await client.post("/control/faults", {"on": "take", "do": "duplicate", "calls": 1})
    return await client.start()


async def test_a_retry_ends_the_stream_of_who_still_reads_the_first_attempt() -> None:
    async with emulator_client() as client:
        body = {"model": "m", "stream": True}
        reading = client.session.post(f"{client.emulator.openai_url}/completions", json=body)
        asking = asyncio.create_task(reading.__aenter__())
        job = (await client.get("/job-take/w"))["id"]
        await client.post_chunk(job, "data: 1\n\n")
        answer = await asking
        assert await answer.content.readline() == b"data: 1\n"
        # In one step of the event loop: the reader sees the second attempt only.
        queue = client.emulator.queue
        first = client.emulator.job(job)
        queue.fail(first, "boom")
        queue.retry(first)
        queue.take(queue.worker("w"), 1)
        queue.add_chunk(first, "data: of the second\n\n")
        rest = await asyncio.wait_for(answer.text(), 60)
        assert "second" not in rest
        assert '"error"' in rest


async def test_a_second_delivery_that_fails_leaves_the_job_with_its_worker() -> None:
    async with emulator_client(take_poll_s=600) as client:
        await client.post("/control/faults", {"on": "take", "do": "delay", "delay_s": 0.2})
        await client.post("/control/faults", {"on": "take", "do": "duplicate", "calls": 1})
        job = await client.start()
        hanging = asyncio.create_task(client.get("/job-take/other"))
        await asyncio.sleep(0.05)  # it waits for what it was delivered
        hanging.cancel()
        await asyncio.wait([hanging])
        assert (await client.status(job))["status"] == "IN_PROGRESS"
        await client.post_done(job, output=1)
        assert (await client.status(job))["status"] == "COMPLETED"


async def test_a_second_delivery_is_not_a_job_that_waits() -> None:
    async with emulator_client() as client:
        job = await start_duplicated(client)
        assert (await client.get("/health"))["jobs"]["inQueue"] == 0
        assert await client.post("/purge-queue") == {"removed": 0, "status": "completed"}
        await client.post_done(job, output=1)
        assert await client.request("GET", "/job-take/other") == (204, None)


async def test_both_workers_of_a_duplicated_job_are_heeded() -> None:
    async with emulator_client() as client:
        job = await start_duplicated(client)
        assert (await client.get("/job-take/other"))["id"] == job
        await client.post_chunk(job, "a", worker="w")
        await client.post_chunk(job, "b", worker="other")
        stream = (await client.get(f"/stream/{job}"))["stream"]
        assert stream == [{"output": "a"}, {"output": "b"}]


async def test_posts_of_a_worker_that_does_not_run_the_job_are_accepted_and_ignored() -> None:
    async with emulator_client() as client:
        job = await client.start()
        assert await client.post_chunk(job, "a", worker="stranger") == (200, {})
        assert await client.post_done(job, "stranger", output=1) == (200, {})
        assert (await client.status(job))["status"] == "IN_PROGRESS"
        assert (await client.get(f"/stream/{job}"))["stream"] == []


async def test_the_stop_of_a_first_attempt_does_not_end_the_second() -> None:
    async with emulator_client(execution_timeout_s=60) as client:
        job = await client.start()
        client.let_pass(60)
        await client.wait_ended(job)
        await client.post(f"/retry/{job}")
        assert (await client.get("/job-take/w"))["id"] == job
        assert client.emulator.queue.worker("w").take_stops() == []


async def test_a_retry_forgets_how_long_the_first_result_was_to_be_kept() -> None:
    async with emulator_client() as client:
        job = await client.start()
        await client.post_done(job, error="boom")
        await client.get(f"/status/{job}?ttl=60000")
        await client.post(f"/retry/{job}")
        client.let_pass(60)
        assert (await client.status(job))["status"] == "IN_QUEUE"


async def test_a_stream_that_its_client_has_read_to_the_last_event_is_not_cancelled() -> None:
    """Clients hang up there, and the worker's final post comes later."""
    async with emulator_client() as client:
        url = f"{client.emulator.openai_url}/completions"
        asking = asyncio.create_task(client.session.post(url, json={"stream": True}).__aenter__())
        job = (await client.get("/job-take/w"))["id"]
        await client.post_chunk(job, "data: 1\n\ndata: [DONE]\n\n")
        answer = await asking
        assert await asyncio.wait_for(answer.text(), 60) == "data: 1\n\ndata: [DONE]\n\n"
        answer.close()
        await client.post_done(job, output=[])
        assert (await client.status(job))["status"] == "COMPLETED"


async def test_waiting_for_a_status_answers_when_the_job_has_ended() -> None:
    async with emulator_client() as client:
        job = await client.start()
        waiting = asyncio.create_task(client.get(f"/status-sync/{job}?wait=10000"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await client.post_done(job, output=1)
        assert (await waiting)["status"] == "COMPLETED"
