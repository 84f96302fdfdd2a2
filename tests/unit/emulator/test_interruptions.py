"""Interruptions of workers: a freeze, or an outage of the platform."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.processes.background import poll_until
from support.processes.emulator_peer import Peer, with_options
from support.processes.fleets import WITH_CHILD, process_states, running_fleet

# Continues after a broken connection; a job runs until the file named by its input exists.
PERSISTENT = """
while True:
    try:
        job = take()
    except OSError as error:
        say("broken by", type(error).__name__)
        continue
    if job:
        say("runs", job["id"])
        while not os.path.exists(job["input"]):
            time.sleep(0.01)
        call("RUNPOD_WEBHOOK_POST_OUTPUT", job["id"], {"output": "done"})
"""


async def freeze(peer: Peer, worker: str, seconds: float = 60) -> tuple[int, Any]:
    path = f"/control/workers/{worker}/freeze"
    return await peer.request("POST", path, json={"seconds": seconds})


async def test_a_frozen_worker_does_nothing_and_serves_again_after_its_thaw(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, WITH_CHILD + PERSISTENT) as running:
        pids = await running.pids()
        status, frozen = await freeze(running.peer, "worker-1")
        assert (status, frozen["frozen"]) == (200, True)
        await poll_until(lambda: process_states(pids) == ["T", "T"])
        job = await running.peer.run(str(tmp_path / "go on"))
        assert await running.peer.status(job) == "IN_QUEUE"
        running.peer.advance_clock(60)
        assert await running.wait_for_log_line("runs") == job
        assert await running.wait_for_log_line("broken by") != ""
        await freeze(running.peer, "worker-1")
        (tmp_path / "go on").touch()
        assert await running.peer.status(job) == "IN_PROGRESS"
        running.peer.advance_clock(60)
        assert (await running.peer.wait_until_ended(job))["status"] == "COMPLETED"
        (worker,) = await running.workers()
        assert (worker["frozen"], worker["starts"]) == (False, 1)


async def test_a_frozen_worker_gets_no_response_until_it_is_thawed(
    peer: Peer, signals: list[signal.Signals]
) -> None:
    await freeze(peer, "w")
    job = await peer.run()
    with pytest.raises(ConnectionResetError):
        await peer.request_raw("GET", "/job-take/w")
    await freeze(peer, "w", seconds=900)
    peer.advance_clock(60)
    with pytest.raises(ConnectionResetError):
        await peer.request_raw("GET", "/job-take/w")
    peer.advance_clock(840)
    await poll_until(lambda: not peer.worker.frozen)
    assert signals == [signal.SIGSTOP, signal.SIGSTOP, signal.SIGCONT]
    assert await peer.take() == job


async def test_a_freeze_ends_when_the_worker_is_replaced_or_the_emulator_stops(
    peer: Peer, signals: list[signal.Signals]
) -> None:
    peer.emulator.freeze_worker("w", 60)
    await peer.emulator.stop()
    assert signals == [signal.SIGSTOP, signal.SIGCONT]
    peer.emulator.freeze_worker("w", 60)
    peer.queue.handle_worker_exit(peer.worker)
    assert not peer.worker.frozen
    with pytest.raises(ProcessLookupError, match="w is not a worker of this endpoint"):
        peer.emulator.freeze_worker("w", 60)
    assert not peer.worker.frozen


# Outages:


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


async def test_an_outage_refuses_workers_for_its_duration_and_serves_callers(peer: Peer) -> None:
    for _ in range(2):
        assert not await is_refused(peer)
        assert [await begin_outage(peer) for _ in range(2)] == [200, 409]
        with pytest.raises(RuntimeError, match="already refused"):
            await peer.emulator.begin_outage(1)
        assert await is_refused(peer)
        job = await peer.run()
        peer.advance_clock(60)
        while await is_refused(peer):
            await asyncio.sleep(0.002)
        async with peer.session.get(worker_url(peer, "/job-take/w")) as answer:
            assert (await answer.json())["id"] == job


@with_options(long_poll_s=600)
async def test_an_outage_resets_the_connections_of_workers_but_not_of_callers(peer: Peer) -> None:
    job = await peer.start()
    waiting = asyncio.create_task(peer.get(f"/status-sync/{job}?wait=300000"))
    taking = asyncio.create_task(peer.session.get(worker_url(peer, "/job-take/v")))
    await poll_until(lambda: "v" in peer.queue.workers)
    await peer.emulator.begin_outage(60)
    with pytest.raises(aiohttp.ClientConnectionError):
        await taking
    await peer.post_done(job, output=1)
    assert (await waiting)["status"] == "COMPLETED"
