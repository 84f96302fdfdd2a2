"""Fleets whose workers run small programs."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.fleet import Fleet
from support.processes.background import HUNG_S, poll_until
from support.processes.emulator_peer import Peer, emulator_peer

# The beginning of all programs; `take` requests a job, like the SDK.
_WORKER = """
import json, os, signal, subprocess, sys, time, urllib.request
environ = os.environ
def call(name, job="", body=None, **headers):
    url = environ[name].replace("$RUNPOD_POD_ID", environ["RUNPOD_POD_ID"]).replace("$ID", job)
    request = urllib.request.Request(url, body and json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read() or "null")
def take(**headers):
    return call("RUNPOD_WEBHOOK_GET_JOB", environ["RUNPOD_POD_ID"], **headers)
def say(*words):
    # In one write: a line is there as a whole, or not.
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
"""

STAYS = "take(); time.sleep(600)"
# Like the SDK, it finishes its job after a SIGTERM, and requests no more jobs.
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
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
WITH_CHILD = """
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
say("child", child.pid)
"""


def program(text: str) -> tuple[str, ...]:
    """Return the command that runs a worker's program with a Python that starts quickly."""
    return (sys.executable, "-I", "-S", "-u", "-c", _WORKER + text)


@dataclass
class RunningFleet:
    """A fleet, the peer of its emulator, and the lines that the fleet announced."""

    fleet: Fleet
    peer: Peer
    logs: Path
    announced: list[str]

    async def wait_for_announcement(self, text: str, times: int = 1) -> None:
        """Wait until a text was announced a number of times."""
        await poll_until(lambda: "\n".join(self.announced).count(text) >= times)

    def log(self, worker: str = "worker-1") -> str:
        return (self.logs / f"{worker}.log").read_text()

    async def wait_for_log_line(self, prefix: str, worker: str = "worker-1") -> str:
        """Wait for a line with this prefix in a worker's log; return the rest of the line."""
        await poll_until(lambda: f"\n{prefix}" in f"\n{self.log(worker)}")
        return self.log(worker).split(prefix)[1].split("\n")[0].strip()

    async def workers(self) -> list[dict[str, Any]]:
        return list((await self.peer.get("/control/workers"))["workers"])

    async def pids(self) -> list[int]:
        """Return the ids of the workers' first processes, once ready, and of their children."""
        await self.wait_for_announcement("is ready after", times=len(self.peer.queue.workers))
        logs = [self.log(worker["id"]) for worker in await self.workers()]
        children = [line.split()[1] for log in logs for line in log.splitlines() if "child" in line]
        return [worker["pid"] for worker in await self.workers()] + [*map(int, children)]

    async def signal(self, name: str) -> None:
        path = "/control/workers/worker-1/signal"
        status, worker = await self.peer.request("POST", path, json={"signal": name})
        assert (status, worker["id"]) == (200, "worker-1")

    async def drain(self, grace_s: float = 600, hurry: asyncio.Event | None = None) -> None:
        """Drain the fleet, with a grace period that no test uses up."""
        async with asyncio.timeout(HUNG_S):
            await self.fleet.drain(grace_s, hurry or asyncio.Event())


@asynccontextmanager
async def running_fleet(
    logs: Path, text: str | Sequence[str], count: int = 1, **options: Any
) -> AsyncIterator[RunningFleet]:
    """Start an emulator and `count` workers that run a program's text or a command."""
    announced: list[str] = []
    command = program(text) if isinstance(text, str) else text
    async with emulator_peer(**{"long_poll_s": 600, **options}) as peer:
        environ = {"OF_THE_ENDPOINT": "yes"}
        async with Fleet(peer.emulator, command, environ, logs, announced.append) as fleet:
            fleet.start_workers(count)
            yield RunningFleet(fleet, peer, logs, announced)


def process_state(pid: int) -> str | None:
    """Return the letter of a process's state (see proc(5)); None if it no longer exists."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None
    return None if letter in "ZX" else letter  # a zombie may have no parent to reap it


def process_states(pids: Iterable[int]) -> list[str | None]:
    return [process_state(pid) for pid in pids]


async def wait_until_exited(*pids: int) -> None:
    """Wait until the processes no longer exist."""
    await poll_until(lambda: not any(process_states(pids)))
