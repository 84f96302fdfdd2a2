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
from support.processes.emulator_client import Client, emulator_client, eventually
from support.processes.fleets import WITH_CHILD, process_state, program, running_fleet

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


async def freeze(client: Client, worker: str, seconds: float = 60) -> Any:
    path = f"/control/workers/{worker}/freeze"
    return await client.request("POST", path, json={"seconds": seconds})


@asynccontextmanager
async def connection(
    client: Client, head: str
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a connection and send the beginning of a request, given without its version."""
    host, _, port = client.emulator.root_url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    method, path = head.split()
    length = "Content-Length: 100\r\n" if method == "POST" else ""
    writer.write(f"{method} /v2/local{path} HTTP/1.1\r\nHost: e\r\n{length}\r\n".encode())
    try:
        yield reader, writer
    finally:
        writer.close()


async def connected(client: Client, count: int, worker: str = "w") -> None:
    """Wait until a worker has so many connections."""

    async def are_there() -> bool:
        gc.collect()
        return len(client.emulator.queue.worker(worker).connections) == count

    await eventually(are_there)


async def assert_reset(reader: asyncio.StreamReader) -> None:
    with pytest.raises(ConnectionResetError):
        await reader.read()


async def test_a_frozen_worker_stands_still_and_serves_again_when_it_is_thawed(
    tmp_path: Path,
) -> None:
    async with running_fleet(tmp_path, program(WITH_CHILD + PERSISTS)) as running:
        client = running.client
        await running.fleet.ready.wait()
        (worker,) = await running.workers()
        pids = [worker["pid"], int(await running.logged("child"))]
        status, frozen = await freeze(client, "worker-1")
        assert (status, frozen["frozen"]) == (200, True)

        async def are_stopped() -> bool:
            return [process_state(pid) for pid in pids] == ["T", "T"]

        await eventually(are_stopped)
        job = await client.run(str(tmp_path))
        await asyncio.sleep(0.05)
        assert (await client.status(job))["status"] == "IN_QUEUE"
        client.let_pass(60)
        assert (await client.wait_ended(job))["status"] == "COMPLETED"
        assert await running.logged("broken by") != ""
        (worker,) = await running.workers()
        assert (worker["frozen"], worker["starts"]) == (False, 1)


async def test_a_job_of_a_frozen_worker_stays_in_progress_and_goes_on(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, program(PERSISTS)) as running:
        client = running.client
        await running.fleet.ready.wait()
        job = await client.run(str(tmp_path / "go on"))
        assert await running.logged("runs") == job
        await freeze(client, "worker-1")
        (tmp_path / "go on").touch()
        await asyncio.sleep(0.05)
        assert (await client.status(job))["status"] == "IN_PROGRESS"
        client.let_pass(60)
        assert (await client.wait_ended(job))["status"] == "COMPLETED"


async def test_a_frozen_worker_that_exits_is_started_again_and_is_not_frozen(
    tmp_path: Path,
) -> None:
    async with running_fleet(tmp_path, program(PERSISTS)) as running:
        await running.fleet.ready.wait()
        await freeze(running.client, "worker-1")
        path = "/control/workers/worker-1/signal"
        await running.client.request("POST", path, json={"signal": "SIGKILL"})
        await running.announces("worker-1 exited by SIGKILL")
        job = await running.client.run(str(tmp_path))
        running.client.let_pass(1)
        assert (await running.client.wait_ended(job))["status"] == "COMPLETED"


async def test_polls_posts_in_flight_and_idle_connections_are_reset_and_only_the_workers() -> None:
    async with emulator_client(take_poll_s=600) as client:
        job = await client.start()
        client.emulator.queue.worker("w").process = Signals()
        async with (
            connection(client, "GET /job-take/w") as (held, _),
            connection(client, f"POST /job-stream/w/{job}") as (posting, _),
            connection(client, "GET /ping/w") as (idle, _),
            connection(client, "GET /ping/other") as (others, other),
        ):
            for reader in (idle, others):
                await reader.readuntil(b"{}")
            await connected(client, 4)  # with the client's own
            client.emulator.freeze("w", 60)
            for reader in (held, posting, idle):
                await assert_reset(reader)
            other.write(b"GET /v2/local/ping/other HTTP/1.1\r\nHost: e\r\n\r\n")
            await others.readuntil(b"{}")
        assert client.emulator.job(job).chunks == []


async def test_a_frozen_worker_is_handed_nothing_until_it_is_thawed() -> None:
    async with emulator_client() as client:
        client.emulator.queue.worker("w").process = process = Signals()
        await freeze(client, "w")
        job = await client.run()
        with pytest.raises(ConnectionResetError):
            await client.raw("GET", "/job-take/w")
        await freeze(client, "w", 90)
        client.let_pass(60)
        with pytest.raises(ConnectionResetError):
            await client.raw("GET", "/job-take/w")
        assert signal.SIGCONT not in process.sent
        client.let_pass(30)
        worker = client.emulator.queue.worker("w")
        assert await worker.changed.wait_for(lambda: not worker.frozen, 60)
        assert process.sent == [signal.SIGSTOP, signal.SIGSTOP, signal.SIGCONT]
        assert (await client.get("/job-take/w"))["id"] == job


async def test_a_worker_that_is_frozen_when_the_emulator_stops_is_thawed() -> None:
    async with emulator_client() as client:
        client.emulator.queue.worker("w").process = process = Signals()
        client.emulator.freeze("w", 60)
    assert process.sent == [signal.SIGSTOP, signal.SIGCONT]


async def test_connections_that_were_closed_are_not_remembered() -> None:
    async with emulator_client() as client:
        for _ in range(5):
            await client.raw("GET", "/ping/w")
        await connected(client, 0)


async def test_a_worker_without_a_process_cannot_be_frozen() -> None:
    async with emulator_client() as client:
        await client.get("/ping/w")
        with pytest.raises(ProcessLookupError, match="w is not run by this endpoint"):
            client.emulator.freeze("w", 60)
        assert not client.emulator.queue.worker("w").frozen


@pytest.mark.parametrize("body", [{}, {"seconds": 0}, {"seconds": -1}, {"seconds": 1, "x": 1}])
async def test_a_freeze_without_a_time_is_refused(body: object) -> None:
    async with emulator_client() as client:
        client.emulator.queue.worker("w").process = process = Signals()
        status, _ = await client.request("POST", "/control/workers/w/freeze", json=body)
        assert (status, process.sent) == (400, [])
