"""Fleets for tests: their workers run small programs."""

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.fleet import Fleet
from support.processes.emulator_client import Client, emulator_client, eventually

# The beginning of every program; `take` asks for a job, as the SDK does.
_WORKER = """
import json, os, signal, subprocess, sys, time, urllib.request
environ = os.environ
def call(name, job="", body=None, **headers):
    url = environ[name].replace("$RUNPOD_POD_ID", environ["RUNPOD_POD_ID"]).replace("$ID", job)
    asked = urllib.request.Request(url, body and json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked) as answer:
        return json.loads(answer.read() or "null")
def take(**headers):
    return call("RUNPOD_WEBHOOK_GET_JOB", environ["RUNPOD_POD_ID"], **headers)
def say(*words):
    print(*words, flush=True)
"""

STAYS = "take(); time.sleep(600)"
# As the SDK does: after a SIGTERM it finishes its job, and asks for no more.
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
    """Return the command that runs a worker's program, by a Python that starts fast."""
    return (sys.executable, "-I", "-S", "-u", "-c", _WORKER + text)


@dataclass
class RunningFleet:
    """A fleet, a client of its emulator, and the lines that the fleet announced."""

    fleet: Fleet
    client: Client
    logs: Path
    announced: list[str]

    async def announces(self, text: str, times: int = 1) -> None:
        """Wait until a text was announced a number of times."""

        async def has_announced() -> bool:
            return "\n".join(self.announced).count(text) >= times

        await eventually(has_announced)

    async def logged(self, prefix: str, worker: str = "worker-1") -> str:
        """Wait for a line in a worker's log that begins so; return the rest of the line."""
        log = self.logs / f"{worker}.log"

        async def is_logged() -> bool:
            return any(line.startswith(prefix) for line in log.read_text().splitlines())

        await eventually(is_logged)
        return log.read_text().split(prefix)[1].split("\n")[0].strip()

    async def workers(self) -> list[dict[str, Any]]:
        return list((await self.client.get("/control/workers"))["workers"])


@asynccontextmanager
async def running_fleet(
    logs: Path, command: Sequence[str], count: int = 1, **options: Any
) -> AsyncIterator[RunningFleet]:
    """Start a fleet of `count` workers, at an emulator with these options."""
    announced: list[str] = []
    async with emulator_client(**{"take_poll_s": 600, **options}) as client:
        environ = {"OF_THE_ENDPOINT": "yes"}
        async with Fleet(client.emulator, command, environ, logs, announced.append) as fleet:
            fleet.start(count)
            yield RunningFleet(fleet, client, logs, announced)


def process_state(pid: int) -> str | None:
    """Return the letter of a process's state (see proc(5)); None if it is gone."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None
    return None if letter in "ZX" else letter  # a zombie may have no parent to reap it


async def wait_gone(*pids: int) -> None:
    """Wait until the processes are gone."""

    async def are_gone() -> bool:
        return [process_state(pid) for pid in pids] == [None] * len(pids)

    await eventually(are_gone)
