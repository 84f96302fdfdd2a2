"""The peer of an emulator: it acts as callers and as workers, instead of the SDK."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from emulator import Emulator, Options
from emulator.job_queue import Worker
from support.processes.background import poll_until

SHORT_POLLS: dict[str, Any] = {"long_poll_s": 0.02, "stream_poll_s": 0.02}


class EmulatorClock:
    """The clock of an emulator and its event loop, in seconds, which a test can advance."""

    def __init__(self) -> None:
        self._real = time.monotonic
        self._passed = 0.0

    def __call__(self) -> float:
        return self._real() + self._passed

    def advance(self, seconds: float) -> None:
        """Advance the clock: everything that is due by then happens immediately."""
        self._passed += seconds


class Peer:
    """A caller and a worker over HTTP. Responses are (status, JSON); an empty body becomes None."""

    def __init__(
        self, session: aiohttp.ClientSession, emulator: Emulator, clock: EmulatorClock
    ) -> None:
        self.session = session
        self.emulator = emulator
        self.queue = emulator.queue
        self.advance_clock = clock.advance

    def url(self, path: str) -> str:
        """Return the URL of a control route, or of a route of the endpoint."""
        emulator = self.emulator
        return (emulator.root_url if path.startswith("/control/") else emulator.url) + path

    async def request(self, method: str, path: str, **kwargs: Any) -> tuple[int, Any]:
        async with self.session.request(method, self.url(path), **kwargs) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if text else None

    async def request_raw(
        self, method: str, path: str, body: object = None, headers: bytes = b""
    ) -> bytes:
        """Send one request; return the raw response. aiohttp would repeat a broken GET.

        Raises:
            ConnectionResetError: The emulator reset the connection.
        """
        content = b"" if body is None else json.dumps(body).encode()
        host, _, port = self.emulator.root_url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        target = self.url(path).removeprefix(self.emulator.root_url)
        head = f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n".encode()
        writer.write(b"%b%bContent-Length: %d\r\n\r\n%b" % (head, headers, len(content), content))
        try:
            return await reader.read()
        finally:
            writer.close()

    async def get(self, path: str) -> Any:
        return (await self.request("GET", path))[1]

    async def post(self, path: str, body: object = None) -> Any:
        return (await self.request("POST", path, json=body))[1]

    async def add_fault(self, **fault: object) -> list[Any]:
        """Add a fault; return all active faults."""
        return list((await self.post("/control/faults", fault))["faults"])

    # As a caller.

    async def run(self, job_input: object = None, **keys: object) -> str:
        """Submit a job, with other keys next to its input; return its id."""
        return str((await self.post("/run", {"input": job_input, **keys}))["id"])

    async def status_object(self, job: str) -> Any:
        return await self.get(f"/status/{job}")

    async def status(self, job: str) -> str | None:
        """Return a job's status; None if the emulator has forgotten the job."""
        status: str | None = (await self.status_object(job)).get("status")
        return status

    async def wait_until_ended(self, job: str) -> Any:
        """Wait until the job has ended; return its status object."""
        await poll_until(lambda: self.queue.jobs[job].has_ended)
        return await self.status_object(job)

    async def stream(self, job: str) -> list[Any]:
        """Return the outputs since the last call."""
        return [chunk["output"] for chunk in (await self.get(f"/stream/{job}"))["stream"]]

    # As a worker.

    @property
    def worker(self) -> Worker:
        return self.queue.get_worker("w")

    async def take(self, worker: str = "w") -> Any:
        """Return the id of the next job; None if the queue is empty."""
        return ((await self.get(f"/job-take/{worker}")) or {}).get("id")

    async def jobs_to_stop(self) -> list[str]:
        """Return the ids of the jobs that the worker has to stop."""
        return list(((await self.get("/job-stop/w")) or {"jobsToStop": []})["jobsToStop"])

    async def start(self, job_input: object = None, **keys: object) -> str:
        """Submit a job and take it as worker w; return its id."""
        job = await self.run(job_input, **keys)
        assert await self.take() == job
        return job

    async def post_chunk(self, job: str, output: object, worker: str = "w") -> tuple[int, Any]:
        return await self.request("POST", f"/job-stream/{worker}/{job}", json={"output": output})

    async def post_done(self, job: str, worker: str = "w", **result: object) -> tuple[int, Any]:
        return await self.request("POST", f"/job-done/{worker}/{job}", json=result)

    async def complete(self, **keys: object) -> str:
        """Submit, take and finish a job; return its id."""
        job = await self.start(**keys)
        await self.post_done(job, output=1)
        return job

    async def poll(self, path: str) -> asyncio.Task[Any]:
        """Send a worker's first request; return its task once the emulator has received it."""
        request = asyncio.create_task(self.request("GET", path))
        worker = path.partition("?")[0].rpartition("/")[2]
        await poll_until(lambda: worker in self.queue.workers)
        return request


@asynccontextmanager
async def emulator_peer(**options: Any) -> AsyncIterator[Peer]:
    """Start an emulator, with short polls by default, and yield its peer."""
    clock = EmulatorClock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", clock)
        async with (
            Emulator(Options(**{**SHORT_POLLS, **options})) as emulator,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout()) as session,
        ):
            yield Peer(session, emulator, clock)


def with_options(**options: Any) -> pytest.MarkDecorator:
    """Start the emulator of the fixture ``peer`` with these options."""
    return pytest.mark.parametrize("peer", [options], indirect=True)
