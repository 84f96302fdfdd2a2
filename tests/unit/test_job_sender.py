"""Jobs for batches and fine-tunes, sent to the worker's own endpoint, here a local server."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from pydantic import SecretStr
from support.engine.scripted import settings
from support.job_loops import serve_routes
from support.processes.background import poll_until

from worker.job_sender import ATTEMPTS, JobSender
from worker.long_work.records import WorkReference

KEY = "rp-the-key"
BATCH = WorkReference("batch", "batch_" + "a" * 24)
ENVIRON = {"BATCH_API_KEY": KEY, "RUNPOD_ENDPOINT_ID": "ep"}
# Statuses that make the server hang, or close the connection.
HANG, CLOSE = 0, 1


@dataclass
class Endpoint:
    """An endpoint that responds with ``statuses`` in order, and then repeats the last one."""

    url: str = ""
    statuses: list[int] = field(default_factory=lambda: [200])
    posts: list[Any] = field(default_factory=list)
    headers: list[str | None] = field(default_factory=list)

    async def run(self, request: web.Request) -> web.Response:
        self.posts.append(await request.json())
        self.headers.append(request.headers.get("authorization"))
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        if status == HANG:
            await asyncio.Event().wait()
        if status == CLOSE and request.transport is not None:
            request.transport.abort()
        # A redirect that is followed would be another post here.
        headers = {"Location": self.url} if 300 <= status < 400 else None
        response = {"id": "a", "status": "IN_QUEUE"}
        return web.json_response(response, status=max(status, 200), headers=headers)

    async def start(self, work: WorkReference = BATCH) -> bool:
        return await JobSender(self.url, SecretStr(KEY)).send_job(work)


@pytest.fixture
async def jobs_server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Endpoint]:
    monkeypatch.setattr("worker.job_sender.FIRST_PAUSE_S", 0.001)
    jobs_server = Endpoint()
    async with serve_routes(web.post("/v2/ep/run", jobs_server.run)) as url:
        jobs_server.url = f"{url}/v2/ep/run"
        yield jobs_server


@pytest.mark.parametrize(
    ("work", "key"), [(BATCH, "batch"), (WorkReference("fine_tune", "ftjob-a"), "fine_tune")]
)
async def test_the_job_names_the_work_and_has_the_longest_possible_timeout(
    jobs_server: Endpoint, work: WorkReference, key: str
) -> None:
    assert await jobs_server.start(work)
    day_s = 24 * 3600
    job = {
        "input": {key: {"id": work.id, "max_runtime_sec": day_s}},
        "policy": {"executionTimeout": 1000 * day_s, "ttl": 2000 * day_s},
    }
    assert (jobs_server.posts, jobs_server.headers) == ([job], [f"Bearer {KEY}"])


@pytest.mark.parametrize("status", [500, 503, 429, 408, CLOSE])
async def test_temporary_failures_are_retried(jobs_server: Endpoint, status: int) -> None:
    jobs_server.statuses = [status, status, 200]
    assert await jobs_server.start()
    assert len(jobs_server.posts) == 3


@pytest.mark.parametrize(
    ("status", "posts", "message"),
    [
        (500, ATTEMPTS, "500"),
        (CLOSE, ATTEMPTS, "isconnected"),
        (HANG, ATTEMPTS, "Timeout"),
        # A refused job is not sent again.
        *((status, 1, str(status)) for status in (302, 308, 400, 401)),
    ],
)
async def test_a_job_that_can_not_be_sent_is_logged_without_the_key(
    jobs_server: Endpoint,
    status: int,
    posts: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if status == HANG:
        monkeypatch.setattr("worker.job_sender.TIMEOUT", aiohttp.ClientTimeout(sock_read=0.05))
    jobs_server.statuses = [status]
    assert not await jobs_server.start()
    await poll_until(lambda: len(jobs_server.posts) == posts)
    (record,) = [one for one in caplog.records if one.name == "worker.job_sender"]
    assert record.getMessage().startswith(f"{BATCH}: ")
    assert message in record.getMessage()
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    "missing", [[*ENVIRON], ["BATCH_API_KEY"], ["RUNPOD_ENDPOINT_ID"]], ids=str
)
def test_there_is_no_sender_without_a_key_or_an_endpoint(missing: list[str]) -> None:
    environ = {name: value for name, value in ENVIRON.items() if name not in missing}
    assert JobSender.from_settings(settings(**environ)) is None


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({}, "https://api.runpod.ai/v2/ep/run"),
        ({"RUNPOD_ENDPOINT_BASE_URL": "http://here/v2"}, "http://here/v2/ep/run"),
    ],
)
def test_jobs_are_sent_to_the_workers_own_endpoint(environ: dict[str, str], url: str) -> None:
    sender = JobSender.from_settings(settings(**ENVIRON, **environ))
    assert sender == JobSender(url, SecretStr(KEY))
    assert KEY not in repr(sender)
