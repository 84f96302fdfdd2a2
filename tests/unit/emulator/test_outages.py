"""Outages for workers: their connections are reset and refused, while callers are served."""

import asyncio

import aiohttp
import pytest
from support.processes.emulator_client import Client, emulator_client, eventually


def worker_url(client: Client, path: str) -> str:
    return client.emulator.worker_url + path


async def is_refused(client: Client) -> bool:
    try:
        async with client.session.get(worker_url(client, "/ping/w")) as answer:
            assert answer.status == 200
    except aiohttp.ClientConnectorError:
        return True
    return False


async def begin_outage(client: Client, seconds: float = 60) -> int:
    status, _ = await client.request("POST", "/control/outage", json={"seconds": seconds})
    return status


async def test_workers_are_refused_for_so_many_seconds_and_callers_are_served() -> None:
    async with emulator_client() as client:
        assert not await is_refused(client)
        assert await begin_outage(client) == 200
        assert await is_refused(client)
        job = await client.run()
        assert (await client.status(job))["status"] == "IN_QUEUE"
        client.let_pass(60)

        async def is_over() -> bool:
            return not await is_refused(client)

        await eventually(is_over)
        async with client.session.get(worker_url(client, "/job-take/w")) as answer:
            assert (await answer.json())["id"] == job


async def test_connections_of_workers_are_reset_and_those_of_callers_are_not() -> None:
    async with emulator_client(take_poll_s=600) as client:
        job = await client.start()
        waiting = asyncio.create_task(client.get(f"/status-sync/{job}?wait=300000"))
        taking = asyncio.create_task(client.session.post(worker_url(client, f"/job-done/w/{job}")))
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(client.emulator.worker_url.split(":")[2].split("/")[0])
        )
        assert (await taking).status == 400  # it has no body
        writer.write(b"GET /v2/local/job-take/v HTTP/1.1\r\nHost: emulator\r\n\r\n")
        workers = client.emulator.queue.workers
        await client.emulator.queue.arrived.wait_for(lambda: "v" in workers, 60)
        await client.emulator.refuse(60)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        await client.post_done(job, output=1)
        assert (await waiting)["status"] == "COMPLETED"


async def test_a_job_that_waits_stays_in_the_queue_when_a_held_take_is_reset() -> None:
    async with emulator_client(take_poll_s=600) as client:
        taking = asyncio.create_task(client.session.get(worker_url(client, "/job-take/w")))
        workers = client.emulator.queue.workers
        await client.emulator.queue.arrived.wait_for(lambda: "w" in workers, 60)
        job = client.emulator.queue.submit({"input": 1})
        await client.emulator.refuse(60)
        with pytest.raises(aiohttp.ClientConnectionError):
            await taking
        assert job.status == "IN_QUEUE"


async def test_there_is_one_outage_at_a_time_and_another_after_its_end() -> None:
    async with emulator_client() as client:
        assert [await begin_outage(client) for _ in range(2)] == [200, 409]
        with pytest.raises(RuntimeError, match="refused already"):
            await client.emulator.refuse(1)
        client.let_pass(60)

        async def begins_again() -> bool:
            return await begin_outage(client) == 200

        await eventually(begins_again)
        assert await is_refused(client)


@pytest.mark.parametrize("body", [{}, {"seconds": 0}, {"seconds": "long"}, {"for": 1}])
async def test_an_outage_without_a_time_is_refused(body: object) -> None:
    async with emulator_client() as client:
        status, answer = await client.request("POST", "/control/outage", json=body)
        assert (status, "seconds: " in answer["error"]) == (400, True)
        assert not await is_refused(client)
