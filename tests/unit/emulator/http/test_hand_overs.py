"""Workers that hang up during a take, just when they are handed a job."""

import asyncio
import json
import socket
import struct
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from support.processes.background import poll_until
from support.processes.emulator_peer import Peer, with_options

LARGE = "x" * 10_000_000  # more than the buffers of a connection hold

pytestmark = with_options(long_poll_s=600)


@asynccontextmanager
async def open_take(peer: Peer, worker: str = "w") -> AsyncIterator[socket.socket]:
    """Request a job without reading the response."""
    host, _, port = peer.emulator.root_url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"GET /v2/local/job-take/{worker} HTTP/1.1\r\nHost: emulator\r\n\r\n"
        connection.sendall(head.encode())
        await poll_until(lambda: worker in peer.queue.workers)
        yield connection


class HangUpInput(dict[str, Any]):
    """An input whose serialization makes the worker hang up after its job was taken."""

    connection: socket.socket | None = None

    def items(self) -> Any:
        if self.connection is not None:
            # Closing returns once the emulator's side has received the end of the connection.
            linger = struct.pack("ii", 1, 60)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()
        return super().items()


async def test_a_job_is_requeued_if_its_worker_hangs_up_before_the_response(peer: Peer) -> None:
    async with open_take(peer) as connection:
        hangs_up = HangUpInput(a=1)
        hangs_up.connection = connection
        job = peer.queue.submit({"input": hangs_up})
        await poll_until(lambda: connection.fileno() == -1)
        hangs_up.connection = None
    assert await peer.take() == job.id


async def test_a_job_is_requeued_if_its_worker_hangs_up_during_the_response(peer: Peer) -> None:
    async with open_take(peer) as connection:
        job = peer.queue.submit({"input": LARGE})
        await asyncio.to_thread(connection.recv, 1)
        assert job.status == "IN_PROGRESS"
    assert await peer.take() == job.id
    assert peer.worker.jobs == 1


async def test_a_worker_that_closes_its_connection_after_the_response_keeps_its_job(
    peer: Peer,
) -> None:
    url = peer.url("/job-take/w")

    def take() -> object:
        with urllib.request.urlopen(url) as answer:
            return json.load(answer)

    taking = asyncio.create_task(asyncio.to_thread(take))
    await poll_until(lambda: "w" in peer.queue.workers)
    job = peer.queue.submit({"input": 1})
    # Keep the emulator busy right after its response.
    asyncio.get_running_loop().call_soon(time.sleep, 0.1)
    assert await taking == {"id": job.id, "input": 1}
    assert job.status == "IN_PROGRESS"


async def test_a_job_that_was_cancelled_during_its_hand_over_is_not_requeued(peer: Peer) -> None:
    job = peer.queue.submit({"input": {}})
    peer.queue.take(peer.worker, 1)
    peer.queue.cancel(job)
    peer.queue.requeue([job])
    assert (job.status, peer.queue.has_available_jobs) == ("CANCELLED", False)
