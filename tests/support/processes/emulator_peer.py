"""The other side of an emulator: plays its callers and its workers, in place of the SDK."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from emulator import Emulator, Options
from emulator.state.worker import Worker
from support.processes.background import eventually

SHORT_POLLS: dict[str, Any] = {"take_poll_s": 0.02, "stream_poll_s": 0.02}


class Clock:
    """The time of an emulator and its event loop, in seconds, which a test can set forward."""

    def __init__(self) -> None:
        self._real = time.monotonic
        self._passed = 0.0

    def __call__(self) -> float:
        return self._real() + self._passed

    def let_pass(self, seconds: float) -> None:
        """Let what is due by then happen at once."""
        self._passed += seconds


class Peer:
    """A caller and a worker, over HTTP. An answer is (status, JSON); an empty body is None."""

    def __init__(self, session: aiohttp.ClientSession, emulator: Emulator, clock: Clock) -> None:
        self.session = session
        self.emulator = emulator
        self.queue = emulator.queue
        self.let_pass = clock.let_pass

    def url(self, path: str) -> str:
        """Return the URL of a route, given below the endpoint's URL, or of a control route."""
        emulator = self.emulator
        return (emulator.root_url if path.startswith("/control/") else emulator.url) + path

    async def request(self, method: str, path: str, **kwargs: Any) -> tuple[int, Any]:
        async with self.session.request(method, self.url(path), **kwargs) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if text else None

    async def raw(self, method: str, path: str, body: object = None, headers: bytes = b"") -> bytes:
        """Send one request, and return the whole answer: aiohttp would repeat a GET that broke.

        Raises:
            ConnectionResetError: the emulator reset the connection.
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
        """Add a fault on demand; return all that are active."""
        return list((await self.post("/control/faults", fault))["faults"])

    # As a caller:

    async def run(self, job_input: object = None, **keys: object) -> str:
        """Queue a job, with other keys next to its input; return its id."""
        return str((await self.post("/run", {"input": job_input, **keys}))["id"])

    async def report(self, job: str) -> Any:
        return await self.get(f"/status/{job}")

    async def status(self, job: str) -> str | None:
        """Return a job's status; None if the emulator has forgotten it."""
        status: str | None = (await self.report(job)).get("status")
        return status

    async def wait_ended(self, job: str) -> Any:
        """Wait until the job has ended; return its status object."""
        await eventually(lambda: self.emulator.job(job).ended)
        return await self.report(job)

    async def stream(self, job: str) -> list[Any]:
        """Return the outputs that were not read before."""
        return [chunk["output"] for chunk in (await self.get(f"/stream/{job}"))["stream"]]

    # As a worker:

    @property
    def worker(self) -> Worker:
        return self.queue.worker("w")

    async def take(self, worker: str = "w") -> Any:
        """Return the id of the next job; None if there is none."""
        return ((await self.get(f"/job-take/{worker}")) or {}).get("id")

    async def stops(self) -> list[str]:
        """Return the ids of the jobs to stop."""
        return list(((await self.get("/job-stop/w")) or {"jobsToStop": []})["jobsToStop"])

    async def start(self, job_input: object = None, **keys: object) -> str:
        """Queue a job and take it as worker w; return its id."""
        job = await self.run(job_input, **keys)
        assert await self.take() == job
        return job

    async def post_chunk(self, job: str, output: object, worker: str = "w") -> tuple[int, Any]:
        return await self.request("POST", f"/job-stream/{worker}/{job}", json={"output": output})

    async def post_done(self, job: str, worker: str = "w", **result: object) -> tuple[int, Any]:
        return await self.request("POST", f"/job-done/{worker}/{job}", json=result)

    async def complete(self, **keys: object) -> str:
        """Run a job to its end; return its id."""
        job = await self.start(**keys)
        await self.post_done(job, output=1)
        return job

    async def poll(self, path: str) -> asyncio.Task[Any]:
        """Send the first request of a worker; return it once the emulator has it."""
        asking = asyncio.create_task(self.request("GET", path))
        worker = path.partition("?")[0].rpartition("/")[2]
        await eventually(lambda: worker in self.queue.workers)
        return asking


@asynccontextmanager
async def emulator_peer(**options: Any) -> AsyncIterator[Peer]:
    """Start an emulator, whose polls are short by default, and yield its other side."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", clock)
        async with (
            Emulator(Options(**{**SHORT_POLLS, **options})) as emulator,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout()) as session,
        ):
            yield Peer(session, emulator, clock)


def with_options(**options: Any) -> pytest.MarkDecorator:
    """Give the fixture ``peer`` an emulator with these options."""
    return pytest.mark.parametrize("peer", [options], indirect=True)
