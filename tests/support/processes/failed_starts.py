"""Workers that fail to start, and the errors that waiting callers get."""

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
from support.processes.background import HUNG_S, BackgroundProcess, start_command
from support.processes.commands import HOME, SCRIPT

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
# Seconds between two requests of a caller that polls.
POLL_S = 0.05


@dataclass(frozen=True)
class FailedStart:
    """The result of a failed startup; ``log`` is the worker's output."""

    # Errors of the jobs, by the way in which they were sent.
    errors: Mapping[str, dict[str, Any]]
    # Seconds from the worker's start to the last error.
    seconds: float
    exit_status: int
    # Jobs that the worker took, and jobs that are queued or in progress after its exit.
    jobs_taken: int
    jobs_left: int
    log: str


async def _poll_error(session: aiohttp.ClientSession, payload: Any, path: str = "status") -> Any:
    async with session.post("run", json={"input": payload}) as answer:
        job_id = (await answer.json())["id"]
    while True:
        async with session.get(f"{path}/{job_id}") as answer:
            report = await answer.json()
        if report["status"] not in ("IN_QUEUE", "IN_PROGRESS"):
            return json.loads(report["error"])["error"]
        await asyncio.sleep(POLL_S)


async def _runsync_error(session: aiohttp.ClientSession) -> Any:
    params = {"wait": "300000"}
    async with session.post("runsync", json={"input": CHAT}, params=params) as answer:
        return json.loads((await answer.json())["error"])["error"]


async def _gateway_error(session: aiohttp.ClientSession) -> Any:
    async with session.post("openai/v1/chat/completions", json={"model": "m", **CHAT}) as answer:
        body = await answer.json()
        assert answer.status == body["error"]["code"]
        return body["error"]


BATCH = {"batch": {"requests": [{"custom_id": "a", "body": CHAT}]}}
WAYS: dict[str, Callable[[aiohttp.ClientSession], Awaitable[Any]]] = {
    "/run": lambda session: _poll_error(session, CHAT),
    "/runsync": _runsync_error,
    "/stream": lambda session: _poll_error(session, {**CHAT, "stream": True}, "stream"),
    "gateway": _gateway_error,
    "batch": lambda session: _poll_error(session, BATCH),
}


async def start_failing_worker(
    environ: Mapping[str, str],
    log: Path,
    disturb: Callable[[BackgroundProcess], None] = lambda _: None,
) -> FailedStart:
    """Start a worker for which one job of each way is waiting; wait until it exits.

    ``disturb`` is called in a thread with the worker as soon as it is started.
    """
    async with (
        Emulator(Options(long_poll_s=1, gateway_timeout_s=HUNG_S)) as emulator,
        aiohttp.ClientSession(f"{emulator.url}/") as session,
    ):
        requests = {way: asyncio.ensure_future(ask(session)) for way, ask in WAYS.items()}
        while emulator.queue.health()["jobs"]["inQueue"] < len(WAYS):
            await asyncio.sleep(POLL_S)
        started_at = time.monotonic()
        with start_command(
            [SCRIPT], {**HOME, **environ, **emulator.worker_environ()}, log
        ) as worker:
            await asyncio.to_thread(disturb, worker)
            ending = asyncio.create_task(asyncio.to_thread(worker.wait_for_exit))
            answered = asyncio.gather(*requests.values())
            first: set[asyncio.Future[Any]] = {ending, answered}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            seconds = time.monotonic() - started_at
            status = await ending
        jobs = emulator.queue.health()["jobs"]
        errors = {way: task.result() for way, task in requests.items() if task.done()}
        answered.cancel()
        await asyncio.wait(requests.values())
        return FailedStart(
            errors=errors,
            seconds=seconds,
            exit_status=status,
            jobs_taken=sum(worker.jobs for worker in emulator.queue.workers.values()),
            jobs_left=jobs["inQueue"] + jobs["inProgress"],
            log=worker.output,
        )


async def start_failing_server(
    environ: Mapping[str, str], log: Path
) -> tuple[dict[str, Any] | None, float]:
    """Start a worker that serves HTTP; wait until it reports why it can't start, or exits.

    Returns:
        The error, None if the worker exited without one, and the seconds that this took.
    """
    key = {"x-api-key": environ.get("SERVE_API_KEY", "")}
    started_at, refusal = time.monotonic(), None
    command = [SCRIPT, "--serve", "--port", "0"]
    with start_command(command, {**HOME, **environ}, log) as worker:
        async with aiohttp.ClientSession(headers=key) as session:
            while refusal is None and worker.process.poll() is None:
                await asyncio.sleep(POLL_S)
                url = f"http://127.0.0.1:{worker.listening_port() or 0}/v1/chat/completions"
                # The worker does not listen yet, or has exited.
                with suppress(aiohttp.ClientConnectionError):
                    async with session.post(url, json=CHAT) as answer:
                        error = (await answer.json())["error"]
                        refusal = None if error["retryable"] else error
        seconds = time.monotonic() - started_at
        worker.process.terminate()
        await asyncio.to_thread(worker.wait_for_exit)
    return refusal, seconds
