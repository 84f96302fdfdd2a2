"""A worker that does not start, and what callers learn who wait for it."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from emulator import Emulator, Options
from support.processes.background import background
from support.processes.commands import HOME, SCRIPT

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
# Seconds between looks of a caller that polls.
LOOK_S = 0.05


@dataclass(frozen=True)
class FailedStart:
    """What came of a start that failed; ``log`` is what it printed."""

    # By the way in which the job was sent.
    errors: Mapping[str, dict[str, Any]]
    # From the start to the last of them.
    seconds: float
    # The exit status.
    status: int
    # Jobs that the worker took, and those in the queue, or in progress, after its end.
    taken: int
    left: int
    log: str


async def _ended(session: aiohttp.ClientSession, payload: Any, path: str = "status") -> Any:
    async with session.post("run", json={"input": payload}) as answer:
        job_id = (await answer.json())["id"]
    while True:
        async with session.get(f"{path}/{job_id}") as answer:
            found = await answer.json()
        if found["status"] not in ("IN_QUEUE", "IN_PROGRESS"):
            return json.loads(found["error"])["error"]
        await asyncio.sleep(LOOK_S)


async def _runsync(session: aiohttp.ClientSession) -> Any:
    params = {"wait": "300000"}
    async with session.post("runsync", json={"input": CHAT}, params=params) as answer:
        return json.loads((await answer.json())["error"])["error"]


async def _gateway(session: aiohttp.ClientSession) -> Any:
    async with session.post("openai/v1/chat/completions", json={"model": "m", **CHAT}) as answer:
        body = await answer.json()
        assert answer.status == body["error"]["code"]
        return body["error"]


BATCH = {"batch": {"requests": [{"custom_id": "a", "body": CHAT}]}}
WAYS: dict[str, Callable[[aiohttp.ClientSession], Awaitable[Any]]] = {
    "/run": lambda session: _ended(session, CHAT),
    "/runsync": _runsync,
    "/stream": lambda session: _ended(session, {**CHAT, "stream": True}, "stream"),
    "gateway": _gateway,
    "batch": lambda session: _ended(session, BATCH),
}


async def failed_start(environ: Mapping[str, str], log: Path) -> FailedStart:
    """Start a worker for which a job of each way waits, until it ends."""
    async with (
        Emulator(Options(take_poll_s=1)) as emulator,
        aiohttp.ClientSession(f"{emulator.url}/") as session,
    ):
        asking = {way: asyncio.ensure_future(ask(session)) for way, ask in WAYS.items()}
        while emulator.queue.health()["jobs"]["inQueue"] < len(WAYS):
            await asyncio.sleep(LOOK_S)
        begun = time.monotonic()
        with background([SCRIPT], {**HOME, **environ, **emulator.worker_environ()}, log) as worker:
            ending = asyncio.create_task(asyncio.to_thread(worker.ended))
            answered = asyncio.gather(*asking.values())
            either: set[asyncio.Future[Any]] = {ending, answered}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            seconds = time.monotonic() - begun
            status = await ending
        jobs = emulator.queue.health()["jobs"]
        errors = {way: task.result() for way, task in asking.items() if task.done()}
        answered.cancel()
        await asyncio.wait(asking.values())
        return FailedStart(
            errors=errors,
            seconds=seconds,
            status=status,
            taken=sum(worker.jobs for worker in emulator.queue.workers.values()),
            left=jobs["inQueue"] + jobs["inProgress"],
            log=worker.output,
        )


async def failed_serve(
    environ: Mapping[str, str], log: Path
) -> tuple[dict[str, Any] | None, float]:
    """Start a worker that serves HTTP, until it has said why it can't start, or has ended.

    Returns:
        The error, None if it has ended without one, and the seconds that it took.
    """
    key = {"x-api-key": environ.get("SERVE_API_KEY", "")}
    begun, refusal = time.monotonic(), None
    command = [SCRIPT, "--serve", "--port", "0"]
    with background(command, {**HOME, **environ}, log) as worker:
        async with aiohttp.ClientSession(headers=key) as session:
            while refusal is None and worker.process.poll() is None:
                await asyncio.sleep(LOOK_S)
                url = f"http://127.0.0.1:{worker.port() or 0}/v1/chat/completions"
                # It does not listen yet, or has ended.
                with suppress(aiohttp.ClientConnectionError):
                    async with session.post(url, json=CHAT) as answer:
                        error = (await answer.json())["error"]
                        refusal = None if error["retryable"] else error
        seconds = time.monotonic() - begun
        worker.process.terminate()
        await asyncio.to_thread(worker.ended)
    return refusal, seconds
