"""Callers and workers of an emulator, in the place of the clients and the SDK."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from emulator import Emulator, Options
from emulator.fleet import Fleet

QUICK: dict[str, Any] = {"take_poll_s": 0.02, "stream_poll_s": 0.02}

# Programs for a Fleet are this and what follows. `take` asks for a job, as the SDK does.
WORKER = """
import json, os, signal, subprocess, sys, time, urllib.request
environ = os.environ
def call(name, job="", body=None):
    url = environ[name].replace("$RUNPOD_POD_ID", environ["RUNPOD_POD_ID"]).replace("$ID", job)
    with urllib.request.urlopen(url, body and json.dumps(body).encode()) as answer:
        return json.loads(answer.read() or "null")
def take():
    return call("RUNPOD_WEBHOOK_GET_JOB", environ["RUNPOD_POD_ID"])
def say(*words):
    print(*words, flush=True)
"""

STAYS = "take(); time.sleep(600)"
# A worker as the SDK is one: after a SIGTERM it ends what it has, and asks for nothing more.
SERVES = """
asked_to_stop = []
signal.signal(signal.SIGTERM, lambda *_: asked_to_stop.append(True))
while not asked_to_stop:
    job = take()
    if job:
        say("runs", job["id"])
        while job["input"] == "until SIGTERM" and not asked_to_stop:
            time.sleep(0.01)
        call("RUNPOD_WEBHOOK_POST_OUTPUT", job["id"], {"output": job["input"]})
say("ends")
"""
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " + STAYS
WITH_CHILD = """
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
say("child", child.pid)
"""


def program(text: str) -> tuple[str, ...]:
    """The command that runs a worker: Python without what makes its start slow."""
    return (sys.executable, "-I", "-S", "-u", "-c", WORKER + text)


class Client:
    """Both a caller and a worker, over HTTP; every answer is (status, JSON or None)."""

    def __init__(self, session: aiohttp.ClientSession, emulator: Emulator) -> None:
        self.session = session
        self.emulator = emulator

    def url(self, path: str) -> str:
        """The URL of a route of the endpoint, or of a control route."""
        emulator = self.emulator
        return (emulator.root_url if path.startswith("/control/") else emulator.url) + path

    async def request(self, method: str, path: str, **kwargs: Any) -> tuple[int, Any]:
        async with self.session.request(method, self.url(path), **kwargs) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if text else None

    async def raw(self, method: str, path: str, body: object = None, headers: bytes = b"") -> bytes:
        """The whole answer, of one request: aiohttp's client sends a GET that broke once more.

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

    # As a caller:

    async def run(self, given: object = None, **more: object) -> str:
        """Queue a job; what is sent beside its input goes into `more`."""
        return str((await self.post("/run", {"input": given, **more}))["id"])

    async def status(self, job: str) -> Any:
        return await self.get(f"/status/{job}")

    async def ended(self, job: str) -> Any:
        """The job's status object once it has ended."""

        async def has_ended() -> bool:
            return (await self.status(job))["status"] not in ("IN_QUEUE", "IN_PROGRESS")

        await eventually(has_ended)
        return await self.status(job)

    async def knows(self, job: str) -> bool:
        """Whether the job can still be asked for."""
        return (await self.request("GET", f"/status/{job}"))[0] == 200

    async def forgotten(self, job: str) -> None:
        """Wait until the job can't be asked for any more."""

        async def is_gone() -> bool:
            return not await self.knows(job)

        await eventually(is_gone)

    # As a worker:

    async def started(self, given: object = None, **more: object) -> str:
        """Queue a job and take it."""
        job = await self.run(given, **more)
        assert (await self.get("/job-take/w"))["id"] == job
        return job

    async def yields(self, job: str, output: object, worker: str = "w") -> tuple[int, Any]:
        return await self.request("POST", f"/job-stream/{worker}/{job}", json={"output": output})

    async def done(self, job: str, worker: str = "w", **result: object) -> tuple[int, Any]:
        return await self.request("POST", f"/job-done/{worker}/{job}", json=result)


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[Client]:
    """A client of an emulator of its own, which does not hold requests for long."""
    async with (
        Emulator(Options(**{**QUICK, **options})) as emulator,
        aiohttp.ClientSession() as session,
    ):
        yield Client(session, emulator)


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(10):
        while not await condition():
            await asyncio.sleep(0.005)


@dataclass
class Running:
    """A fleet, and what it told."""

    fleet: Fleet
    client: Client
    logs: Path
    told: list[str]

    async def is_told(self, text: str, times: int = 1) -> None:
        async def was() -> bool:
            return "\n".join(self.told).count(text) >= times

        await eventually(was)

    async def logged(self, text: str, worker: str = "worker-1") -> str:
        """What stands behind a text in a worker's log, once it is there."""
        log = self.logs / f"{worker}.log"

        async def is_there() -> bool:
            return any(line.startswith(text) for line in log.read_text().splitlines())

        await eventually(is_there)
        return log.read_text().split(text)[1].split("\n")[0].strip()

    async def workers(self) -> list[dict[str, Any]]:
        return list((await self.client.get("/control/workers"))["workers"])


@asynccontextmanager
async def running(
    logs: Path, command: Sequence[str], count: int = 1, **options: Any
) -> AsyncIterator[Running]:
    told: list[str] = []
    async with serving(**{"take_poll_s": 60, **options}) as client:
        environ = {"OF_THE_ENDPOINT": "yes"}
        async with Fleet(client.emulator, command, environ, logs, told.append) as fleet:
            fleet.start(count)
            yield Running(fleet, client, logs, told)


def state(pid: int) -> str | None:
    """What a process is doing, in a letter; None where it is gone."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None
    return None if letter in "ZX" else letter  # nobody may be there to reap it


async def end(*pids: int) -> None:
    """Wait until processes are gone."""

    async def are_gone() -> bool:
        return [state(pid) for pid in pids] == [None] * len(pids)

    await eventually(are_gone)
