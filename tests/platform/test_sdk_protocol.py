"""Tests that the real SDK and the worker's job loop send the same recorded requests.

`RECORD=1 pytest tests/platform/test_sdk_protocol.py` records the SDK's own loop again.
tests/unit/emulator/http/test_protocol.py replays the recording against the emulator.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.job_loops import serve_routes
from support.processes.background import HUNG_S
from support.processes.scripted_worker import LOOPS, scripted_worker

from emulator import Emulator

HERE = Path(__file__).parent
RECORDING = HERE / "recordings" / "runpod.json"
MAX_CONCURRENCY = 8

CALLS = ["job-take", "job-take-batch", "ping", "job-stream", "job-done", "job-stop"]
ERROR = json.dumps({"error": {"message": "no such model", "code": 404}})
SCENARIOS: dict[str, tuple[int, list[dict[str, Any]]]] = {
    # The number of slots of the worker, and the jobs in the first response.
    "several": (
        MAX_CONCURRENCY,
        [
            {"id": "streams", "input": {"yields": ["data: ü\n\n", {"choices": [1]}, "last"]}},
            {"id": "fails", "input": {"yields": ["begun", {"error": ERROR}]}},
            {"id": "hangs", "input": {"yields": ["begun", "hang"]}},
        ],
    ),
    "one": (1, [{"id": "streams", "input": {"yields": ["a", "b"]}}]),
}


class RecordingServer:
    """A server that plays one fixed scenario to a worker and records the exchange."""

    def __init__(self, jobs: list[dict[str, Any]]) -> None:
        self.finished = asyncio.Event()
        self._jobs: list[dict[str, Any]] | None = jobs
        self._hanging = any(job["id"] == "hangs" for job in jobs)
        # The SDK's own loop may report a job in a ping before its task can be stopped.
        self._pinged = asyncio.Event()
        self._begun = asyncio.Event()
        self._stopped = asyncio.Event()
        self._exchanges: list[dict[str, Any]] = []

    def route(self) -> web.RouteDef:
        return web.route("*", "/v2/local/{call}/{ids:.+}", self.answer)

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        calls = {"job-take": self.take, "job-take-batch": self.take, "job-stop": self.stop}
        answer = await call(request) if (call := calls.get(request.match_info["call"])) else {}
        self._record(request, body, answer)
        return web.Response(status=204) if answer is None else web.json_response(answer)

    def _record(self, request: web.Request, body: bytes, answer: Any) -> None:
        if request.match_info["call"] == "ping":
            if "hangs" not in request.query.get("job_id", ""):
                return  # whether there is a ping before the hanging job depends on timing
            self._pinged.set()
        if request.path.endswith("/job-stream/w/hangs"):
            self._begun.set()
        exchange = {
            "method": request.method,
            "path": request.path.removeprefix("/v2/local"),
            "query": normalize_query(dict(request.query)),
            "content_type": request.headers.get("Content-Type"),
            "authorization": request.headers.get("Authorization"),
            "request_id": request_id(request),
            "body": json.loads(body) if body else None,
            "answer": answer,
        }
        if exchange not in self._exchanges:  # polls and pings repeat
            self._exchanges.append(exchange)

    async def take(self, request: web.Request) -> Any:
        """Return all jobs first and then none; finish when the worker reports that it is idle."""
        if self._jobs is not None:
            jobs, self._jobs = self._jobs, None
            return jobs if "batch" in request.path else jobs[0]
        if self._hanging:
            await self._stopped.wait()
        await asyncio.sleep(0.05)
        if request.query["job_in_progress"] == "0":
            self.finished.set()
        return None

    async def stop(self, request: web.Request) -> Any:
        """Stop the hanging job after it has started and a ping has reported it."""
        if not self._hanging or self._stopped.is_set():
            await self.finished.wait()
            return None
        await self._begun.wait()
        await self._pinged.wait()
        self._stopped.set()
        return {"jobsToStop": ["hangs"]}

    def recording(self) -> list[dict[str, Any]]:
        """Return the exchanges in an order without timing; posts of one job keep their order."""
        return sorted(self._exchanges, key=sort_key)


def sort_key(exchange: dict[str, Any]) -> tuple[Any, ...]:
    path = exchange["path"]
    call = CALLS.index(path.split("/")[1])
    return exchange["answer"] is None, call, path, sorted(exchange["query"].items())


def normalize_query(query: dict[str, str]) -> dict[str, str]:
    """Replace the values that depend on timing or on the SDK's version."""
    varying = ("batch_size", "job_id", "runpod_version")
    return {key: f"<{key}>" if key in varying else query[key] for key in query}


def request_id(request: web.Request) -> str | None:
    """Return the job id that a POST reports; polls of the SDK repeat the id of the last POST."""
    return request.headers["X-Request-ID"] if request.method == "POST" else None


def is_early_take(exchange: dict[str, Any]) -> bool:
    """Return whether a worker with one slot takes its next job while it posts a result.

    The SDK's own loop doesn't.
    """
    return bool(exchange["path"] == "/job-take/w" and exchange["query"]["job_in_progress"] == "1")


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("loop", LOOPS)
async def test_both_loops_send_the_recorded_requests(loop: str, scenario: str) -> None:
    max_concurrency, jobs = SCENARIOS[scenario]
    server = RecordingServer(jobs)
    emulator = Emulator()  # not started: it only supplies the environment of its workers
    async with serve_routes(server.route()) as url, asyncio.timeout(HUNG_S):
        environ = {
            name: value.replace(emulator.api_url, f"{url}/v2")
            for name, value in emulator.worker_environ("w").items()
        }
        async with scripted_worker(environ, max_concurrency, loop):
            await server.finished.wait()
    recordings = json.loads(RECORDING.read_text()) if RECORDING.exists() else {}
    if "RECORD" in os.environ and loop == "sdk":
        recordings[scenario] = server.recording()
        text = json.dumps(recordings, indent=1, ensure_ascii=False, sort_keys=True)
        RECORDING.write_text(f"{text}\n")
    sent = [exchange for exchange in server.recording() if not is_early_take(exchange)]
    recorded = [exchange for exchange in recordings[scenario] if not is_early_take(exchange)]
    assert sent == recorded
