"""Outages for workers: their connections are reset and refused, while callers are served."""

import asyncio

import aiohttp
import pytest
from support.processes.emulator_peer import Peer, eventually, with_options


def worker_url(peer: Peer, path: str) -> str:
    return peer.emulator.worker_url + path


async def is_refused(peer: Peer) -> bool:
    try:
        async with peer.session.get(worker_url(peer, "/ping/w")) as answer:
            assert answer.status == 200
    except aiohttp.ClientConnectorError:
        return True
    return False


async def begin_outage(peer: Peer) -> int:
    return (await peer.request("POST", "/control/outage", json={"seconds": 60}))[0]


async def wait_over(peer: Peer) -> None:
    peer.let_pass(60)
    while await is_refused(peer):
        await asyncio.sleep(0.002)


async def test_workers_are_refused_for_so_many_seconds_and_callers_are_served(peer: Peer) -> None:
    assert not await is_refused(peer)
    assert await begin_outage(peer) == 200
    assert await is_refused(peer)
    job = await peer.run()
    await wait_over(peer)
    async with peer.session.get(worker_url(peer, "/job-take/w")) as answer:
        assert (await answer.json())["id"] == job


@with_options(take_poll_s=600)
async def test_connections_of_workers_are_reset_and_those_of_callers_are_not(peer: Peer) -> None:
    job = await peer.start()
    waiting = asyncio.create_task(peer.get(f"/status-sync/{job}?wait=300000"))
    idle = await peer.session.post(worker_url(peer, f"/job-done/w/{job}"))
    assert idle.status == 400  # it has no body
    taking = asyncio.create_task(peer.session.get(worker_url(peer, "/job-take/v")))
    await eventually(lambda: "v" in peer.queue.workers)
    await peer.emulator.refuse(60)
    with pytest.raises(aiohttp.ClientConnectionError):
        await taking
    queued = await peer.run()
    assert await peer.status(queued) == "IN_QUEUE"
    await peer.post_done(job, output=1)
    assert (await waiting)["status"] == "COMPLETED"


async def test_there_is_one_outage_at_a_time_and_another_after_its_end(peer: Peer) -> None:
    assert [await begin_outage(peer) for _ in range(2)] == [200, 409]
    with pytest.raises(RuntimeError, match="refused already"):
        await peer.emulator.refuse(1)
    await wait_over(peer)
    assert await begin_outage(peer) == 200
    assert await is_refused(peer)


@pytest.mark.parametrize("body", [{}, {"seconds": 0}, {"seconds": "long"}, {"for": 1}])
async def test_an_outage_without_a_time_is_refused(peer: Peer, body: object) -> None:
    status, answer = await peer.request("POST", "/control/outage", json=body)
    assert (status, "seconds: " in answer["error"]) == (400, True)
    assert not await is_refused(peer)
