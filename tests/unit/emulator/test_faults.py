"""Faults on demand, as a worker sees them."""

import asyncio
from typing import Any

import pytest
from support.processes.emulator_client import Client, emulator_client, eventually

CALLS = ["take", "stop", "stream", "done"]


async def prepare(client: Client, call: str) -> str:
    """Queue a job, and bring it to the state in which a worker makes the call; return its id."""
    job = await (client.run if call == "take" else client.start)()
    if call == "stop":
        await client.post(f"/cancel/{job}")
    return job


def request(call: str, job: str) -> tuple[str, str, Any]:
    """Return the method, path and body of the worker's call."""
    if call in ("take", "stop"):
        return ("GET", f"/job-{call}/w", None)
    return ("POST", f"/job-{call}/w/{job}", {"output": "x"})


async def took_effect(client: Client, call: str, job: str) -> bool:
    """Return whether the call changed the emulator's state. For `stop` this clears all faults."""
    if call == "stop":
        await client.request("DELETE", "/control/faults")
        return await client.request("GET", "/job-stop/w") == (204, None)
    timings = await client.get(f"/control/jobs/{job}")
    effects: dict[str, bool] = {
        "take": timings["status"] == "IN_PROGRESS",
        "stream": len(timings["chunks"]) == 1,
        "done": timings["status"] == "COMPLETED",
    }
    return effects[call]


async def set_fault(client: Client, **fault: object) -> list[Any]:
    status, answer = await client.request("POST", "/control/faults", json=fault)
    assert status == 200
    return list(answer["faults"])


async def assert_reset(client: Client, call: str, job: str) -> None:
    with pytest.raises(ConnectionResetError):
        await client.raw(*request(call, job))


async def wait_all_triggered(client: Client) -> None:
    """Wait until every fault has met the number of calls that it is for."""

    async def all_triggered() -> bool:
        return not (await client.get("/control/faults"))["faults"]

    await eventually(all_triggered)


@pytest.mark.parametrize("status", [429, 500, None])
@pytest.mark.parametrize("call", CALLS)
async def test_a_call_answered_with_a_status_has_done_nothing(
    call: str, status: int | None
) -> None:
    async with emulator_client() as client:
        job = await prepare(client, call)
        await set_fault(client, on=call, do="status", **({"status": status} if status else {}))
        method, path, body = request(call, job)
        answer = await client.request(method, path, json=body)
        assert answer == (status or 500, {"error": "a fault on demand"})
        assert not await took_effect(client, call, job)


@pytest.mark.parametrize(("action", "effective"), [("reset", False), ("lose", True)])
@pytest.mark.parametrize("call", CALLS)
async def test_a_call_whose_connection_is_reset_has_done_nothing_unless_only_its_answer_was_lost(
    call: str, action: str, effective: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with emulator_client() as client:
        job = await prepare(client, call)
        await set_fault(client, on=call, do=action)
        await assert_reset(client, call, job)
        assert await took_effect(client, call, job) is effective
    assert caplog.records == []


@pytest.mark.parametrize("ends_by", ["its time", "being cleared"])
@pytest.mark.parametrize("call", CALLS)
async def test_a_call_that_hangs_does_nothing_and_is_reset_when_the_fault_ends(
    call: str, ends_by: str
) -> None:
    async with emulator_client() as client:
        job = await prepare(client, call)
        await set_fault(client, on=call, do="hang", calls=1, seconds=60)
        calling = asyncio.create_task(client.raw(*request(call, job)))
        await wait_all_triggered(client)
        await asyncio.sleep(0.05)
        assert not calling.done()
        if ends_by == "its time":
            client.let_pass(60)
        else:
            await client.request("DELETE", "/control/faults")
        with pytest.raises(ConnectionResetError):
            await calling
        assert not await took_effect(client, call, job)


async def test_a_worker_can_hang_up_a_call_that_hangs_and_others_go_on() -> None:
    async with emulator_client() as client:
        job = await client.run()
        await set_fault(client, on="take", do="hang", calls=1)
        taking = asyncio.create_task(client.raw("GET", "/job-take/w"))
        await wait_all_triggered(client)
        taking.cancel()
        assert (await client.get("/job-take/w"))["id"] == job


async def test_a_take_of_several_jobs_meets_the_faults_of_a_take() -> None:
    async with emulator_client() as client:
        await client.run()
        await set_fault(client, on="take", do="status", status=429)
        assert (await client.request("GET", "/job-take-batch/w?batch_size=2"))[0] == 429


async def test_a_job_whose_take_was_lost_is_in_progress_and_delivered_to_no_other_worker() -> None:
    async with emulator_client() as client:
        job = await client.run()
        await set_fault(client, on="take", do="lose", calls=1)
        await assert_reset(client, "take", job)
        assert (await client.status(job))["status"] == "IN_PROGRESS"
        assert await client.request("GET", "/job-take/other") == (204, None)


@pytest.mark.parametrize("call", CALLS)
async def test_a_delayed_call_does_what_it_should_and_its_answer_takes_so_long(call: str) -> None:
    async with emulator_client() as client:
        job = await prepare(client, call)
        await set_fault(client, on=call, do="delay", delay_s=60)
        method, path, body = request(call, job)
        calling = asyncio.create_task(client.request(method, path, json=body))

        async def is_effective() -> bool:
            return await took_effect(client, call, job)

        if call != "stop":  # looking would take the stop
            await eventually(is_effective)
        await asyncio.sleep(0.05)
        assert not calling.done()
        while not calling.done():
            client.let_pass(60)
            await asyncio.sleep(0.01)
        status, answer = await calling
        assert status == 200
        assert answer == {
            "take": {"id": job, "input": None},
            "stop": {"jobsToStop": [job]},
        }.get(call, {})


async def test_a_worker_that_hangs_up_during_a_delayed_take_has_not_got_the_job() -> None:
    async with emulator_client() as client:
        job = await client.run()
        await set_fault(client, on="take", do="delay", delay_s=60)
        taking = asyncio.create_task(client.raw("GET", "/job-take/w"))

        async def is_taken() -> bool:
            return bool((await client.status(job))["status"] == "IN_PROGRESS")

        async def is_back() -> bool:
            return bool((await client.status(job))["status"] == "IN_QUEUE")

        await eventually(is_taken)
        taking.cancel()
        await eventually(is_back)


async def test_a_worker_that_hangs_up_during_a_delayed_stop_is_notified_again() -> None:
    async with emulator_client() as client:
        job = await prepare(client, "stop")
        await set_fault(client, on="stop", do="delay", delay_s=60)
        worker = client.emulator.queue.worker("w")
        asking = asyncio.create_task(client.raw("GET", "/job-stop/w"))

        async def is_on_its_way() -> bool:
            return not worker.stops

        await eventually(is_on_its_way)
        asking.cancel()
        await client.request("DELETE", "/control/faults")

        async def is_back() -> bool:
            return bool(worker.stops)

        await eventually(is_back)
        assert await client.get("/job-stop/w") == {"jobsToStop": [job]}


@pytest.mark.parametrize("path", ["/job-take/w", "/job-take-batch/w?batch_size=4"])
async def test_a_duplicated_take_delivers_the_same_jobs_once_more(path: str) -> None:
    async with emulator_client() as client:
        for _ in range(2):
            await client.run()
        await set_fault(client, on="take", do="duplicate", calls=1)
        first = await client.get(path)
        assert await client.get(path) == first
        assert await client.get(path) != first
        jobs = first if isinstance(first, list) else [first]
        assert {(await client.status(job["id"]))["status"] for job in jobs} == {"IN_PROGRESS"}


async def test_a_purge_leaves_a_running_job_alone_that_is_to_be_delivered_once_more() -> None:
    async with emulator_client() as client:
        await set_fault(client, on="take", do="duplicate", calls=1)
        job = await client.start()
        assert (await client.post("/purge-queue"))["removed"] == 0
        assert (await client.status(job))["status"] == "IN_PROGRESS"
        assert (await client.get("/job-take/w"))["id"] == job


async def test_a_job_that_ended_meanwhile_is_not_delivered_once_more() -> None:
    async with emulator_client() as client:
        await set_fault(client, on="take", do="duplicate", calls=1)
        job = await client.start()
        await client.post_done(job, output=1)
        assert await client.request("GET", "/job-take/w") == (204, None)
        assert await client.request("GET", "/job-take-batch/w?batch_size=2") == (204, None)


async def test_a_fault_for_some_calls_runs_out_and_the_listing_shows_what_is_left() -> None:
    async with emulator_client() as client:
        job = await client.start()
        fault = {"on": "stream", "do": "status", "status": 503}
        assert await set_fault(client, on="stream", do="status", status=503, calls=2) == [
            {**fault, "calls": 2}
        ]
        assert (await client.post_chunk(job, "a"))[0] == 503
        assert await client.get("/control/faults") == {"faults": [{**fault, "calls": 1}]}
        assert (await client.post_chunk(job, "b"))[0] == 503
        assert await client.get("/control/faults") == {"faults": []}
        assert (await client.post_chunk(job, "c"))[0] == 200


async def test_a_fault_for_some_seconds_runs_out() -> None:
    async with emulator_client() as client:
        job = await client.start()
        (fault,) = await set_fault(client, on="stream", do="status", seconds=60)
        assert 0 < fault["seconds"] <= 60
        assert (await client.post_chunk(job, "a"))[0] == 500
        client.let_pass(60)
        assert await client.get("/control/faults") == {"faults": []}
        assert (await client.post_chunk(job, "b"))[0] == 200


async def test_a_fault_without_an_end_stays_until_it_is_cleared() -> None:
    async with emulator_client() as client:
        job = await client.start()
        await set_fault(client, on="stream", do="status")
        assert [(await client.post_chunk(job, "a"))[0] for _ in range(5)] == [500] * 5
        assert await client.request("DELETE", "/control/faults") == (200, {"faults": []})
        assert (await client.post_chunk(job, "b"))[0] == 200


async def test_a_fault_meets_its_own_call_only_and_only_workers() -> None:
    async with emulator_client() as client:
        await set_fault(client, on="done", do="status")
        job = await client.start()
        assert (await client.post_chunk(job, "a"))[0] == 200
        assert (await client.request("GET", "/ping/w"))[0] == 200
        assert (await client.request("GET", f"/status/{job}"))[0] == 200
        assert (await client.post_done(job, output=1))[0] == 500


async def test_several_faults_of_a_call_come_one_after_the_other() -> None:
    async with emulator_client() as client:
        job = await client.start()
        await set_fault(client, on="stream", do="status", status=429, calls=1)
        await set_fault(client, on="stream", do="status", status=502, calls=1)
        assert [(await client.post_chunk(job, "a"))[0] for _ in range(3)] == [429, 502, 200]
