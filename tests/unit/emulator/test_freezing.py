"""Workers that are frozen and thawed."""

import asyncio
import gc
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.processes.emulator_peer import Peer, eventually, with_options
from support.processes.fleets import WITH_CHILD, running_fleet, states

# Goes on after a broken connection; a job runs until the file that is its input exists.
PERSISTS = """
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


@dataclass
class Signals:
    """In place of a worker's process: what it is sent."""

    pid: int = 0
    sent: list[signal.Signals] = field(default_factory=list)

    def signal(self, number: signal.Signals) -> None:
        self.sent.append(number)


@pytest.fixture
def signals(peer: Peer) -> Signals:
    peer.worker.process = signals = Signals()
    return signals


async def freeze(peer: Peer, worker: str, **body: object) -> tuple[int, Any]:
    path = f"/control/workers/{worker}/freeze"
    return await peer.request("POST", path, json=body or {"seconds": 60})


async def test_a_frozen_worker_stands_still_and_serves_again_later(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, WITH_CHILD + PERSISTS) as running:
        pids = await running.pids()
        status, frozen = await freeze(running.peer, "worker-1")
        assert (status, frozen["frozen"]) == (200, True)
        await eventually(lambda: states(pids) == ["T", "T"])
        job = await running.peer.run(str(tmp_path))
        assert await running.peer.status(job) == "IN_QUEUE"
        running.peer.let_pass(60)
        assert (await running.peer.wait_ended(job))["status"] == "COMPLETED"
        assert await running.logged("broken by") != ""
        (worker,) = await running.workers()
        assert (worker["frozen"], worker["starts"]) == (False, 1)


async def test_a_job_of_a_frozen_worker_stays_in_progress_and_goes_on(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, PERSISTS) as running:
        job = await running.peer.run(str(tmp_path / "go on"))
        assert await running.logged("runs") == job
        await freeze(running.peer, "worker-1")
        (tmp_path / "go on").touch()
        assert await running.peer.status(job) == "IN_PROGRESS"
        running.peer.let_pass(60)
        assert (await running.peer.wait_ended(job))["status"] == "COMPLETED"


async def test_a_frozen_worker_that_exits_is_started_and_not_frozen(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, PERSISTS) as running:
        await running.pids()
        await freeze(running.peer, "worker-1")
        await running.signal("SIGKILL")
        await running.announces("worker-1 exited by SIGKILL")
        job = await running.peer.run(str(tmp_path))
        running.peer.let_pass(1)
        assert (await running.peer.wait_ended(job))["status"] == "COMPLETED"


@asynccontextmanager
async def connection(
    peer: Peer, head: str
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a connection and send the beginning of a request, without its version."""
    host, _, port = peer.emulator.root_url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    method, path = head.split()
    length = "Content-Length: 100\r\n" if method == "POST" else ""
    writer.write(f"{method} /v2/local{path} HTTP/1.1\r\nHost: e\r\n{length}\r\n".encode())
    try:
        yield reader, writer
    finally:
        writer.close()


@with_options(take_poll_s=600)
async def test_connections_of_a_frozen_worker_alone_are_reset(peer: Peer, signals: Signals) -> None:
    job = await peer.start()
    async with (
        connection(peer, "GET /job-take/w") as (taking, _),
        connection(peer, f"POST /job-stream/w/{job}") as (posting, _),
        connection(peer, "GET /ping/w") as (idle, _),
        connection(peer, "GET /ping/other") as (others, other),
    ):
        for reader in (idle, others):
            await reader.readuntil(b"{}")
        await eventually(lambda: len(peer.worker.connections) == 4)  # with the peer's own
        peer.emulator.freeze("w", 60)
        for reader in (taking, posting, idle):
            with pytest.raises(ConnectionResetError):
                await reader.read()
        other.write(b"GET /v2/local/ping/other HTTP/1.1\r\nHost: e\r\n\r\n")
        await others.readuntil(b"{}")
    assert peer.emulator.job(job).chunks == []


async def test_a_frozen_worker_is_answered_when_it_is_thawed(peer: Peer, signals: Signals) -> None:
    await freeze(peer, "w")
    job = await peer.run()
    with pytest.raises(ConnectionResetError):
        await peer.raw("GET", "/job-take/w")
    await freeze(peer, "w", seconds=900)
    peer.let_pass(60)
    with pytest.raises(ConnectionResetError):
        await peer.raw("GET", "/job-take/w")
    peer.let_pass(840)
    await eventually(lambda: not peer.worker.frozen)
    assert signals.sent == [signal.SIGSTOP, signal.SIGSTOP, signal.SIGCONT]
    assert await peer.take() == job


async def test_a_stopping_emulator_thaws_its_workers(peer: Peer, signals: Signals) -> None:
    peer.emulator.freeze("w", 60)
    await peer.emulator.stop()
    assert signals.sent == [signal.SIGSTOP, signal.SIGCONT]


async def test_connections_that_were_closed_are_not_remembered(peer: Peer) -> None:
    for _ in range(5):
        await peer.raw("GET", "/ping/w")
    while peer.worker.connections:
        gc.collect()
        await asyncio.sleep(0.01)


async def test_a_worker_without_a_process_cannot_be_frozen(peer: Peer) -> None:
    with pytest.raises(ProcessLookupError, match="w is not run by this endpoint"):
        peer.emulator.freeze("w", 60)
    assert not peer.worker.frozen


@pytest.mark.parametrize("body", [{"second": 1}, {"seconds": 0}, {"seconds": 1, "x": 1}])
async def test_a_freeze_needs_a_time(peer: Peer, signals: Signals, body: dict[str, object]) -> None:
    assert ((await freeze(peer, "w", **body))[0], signals.sent) == (400, [])
