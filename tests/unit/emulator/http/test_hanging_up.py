"""Workers that hang up their take at the very moment at which they are handed a job."""

import asyncio
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.processes.emulator_client import Client, emulator_client, eventually

LARGE = "x" * 10_000_000  # more than the buffers of a connection hold


@contextmanager
def held_take(client: Client) -> Iterator[socket.socket]:
    """Ask for a job, and read no answer."""
    host, _, port = client.emulator.root_url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"GET /v2/local/job-take/w HTTP/1.1\r\nHost: emulator\r\n\r\n")
        yield connection


class HangsUp(dict[str, Any]):
    """An input on whose serialization the worker hangs up: after its job was taken for it."""

    connection: socket.socket | None = None

    def items(self) -> Any:
        if self.connection is not None:
            # Returns when the emulator's side has the end of the connection.
            linger = struct.pack("ii", 1, 60)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()
        return super().items()


async def is_held(client: Client) -> None:
    async def has_asked() -> bool:
        return "w" in client.emulator.queue.workers

    await eventually(has_asked)


async def test_a_job_goes_back_when_its_worker_hangs_up_before_the_answer_is_written() -> None:
    async with emulator_client(take_poll_s=600) as client:
        with held_take(client) as connection:
            await is_held(client)
            hangs_up = HangsUp(a=1)
            hangs_up.connection = connection
            job = client.emulator.queue.submit({"input": hangs_up})

            async def is_closed() -> bool:
                return connection.fileno() == -1

            await eventually(is_closed)
            hangs_up.connection = None
        assert (await client.get("/job-take/w"))["id"] == job.id


async def test_a_job_goes_back_when_its_worker_hangs_up_before_it_has_the_whole_answer() -> None:
    async with emulator_client(take_poll_s=600) as client:
        with held_take(client) as connection:
            await is_held(client)
            job = client.emulator.queue.submit({"input": LARGE})
            await asyncio.to_thread(connection.recv, 1)
            assert job.status == "IN_PROGRESS"
        assert (await client.get("/job-take/w"))["id"] == job.id
        assert client.emulator.queue.worker("w").jobs == 1


async def test_a_job_that_is_larger_than_the_buffers_is_delivered_whole() -> None:
    async with emulator_client(take_poll_s=600) as client:
        job = client.emulator.queue.submit({"input": LARGE})
        taken = await client.get("/job-take/w")
        assert (taken["id"], len(taken["input"])) == (job.id, len(LARGE))
        assert job.status == "IN_PROGRESS"
