"""The job that runs a batch or a fine-tune is sent to the worker's own endpoint, here a server."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from pydantic import SecretStr
from support.engine.scripted import settings
from support.job_loops import serving
from support.processes.background import eventually

from worker.long_work.kinds import LongWork
from worker.sending import TRIES, Sending

KEY = "rp-the-key"
BATCH = LongWork("batch", "batch_" + "a" * 24)
OWN = {"BATCH_API_KEY": KEY, "RUNPOD_ENDPOINT_ID": "ep"}
# The server does not answer.
HANG, CLOSE = 0, 1


@dataclass
class Endpoint:
    """Answers posts with these statuses, one after the other; the last one stays."""

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
        return web.json_response({"id": "a", "status": "IN_QUEUE"}, status=max(status, 200))

    async def start(self, work: LongWork = BATCH) -> bool:
        return await Sending(self.url, SecretStr(KEY)).start(work)


@pytest.fixture
async def own_endpoint(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Endpoint]:
    monkeypatch.setattr("worker.sending.PAUSE_S", 0.001)
    endpoint = Endpoint()
    async with serving(web.post("/v2/ep/run", endpoint.run)) as url:
        endpoint.url = f"{url}/v2/ep/run"
        yield endpoint


@pytest.mark.parametrize(
    ("work", "key"), [(BATCH, "batch"), (LongWork("fine_tune", "ftjob-a"), "fine_tune")]
)
async def test_the_job_goes_on_with_the_work_and_has_as_long_as_the_platform_allows(
    own_endpoint: Endpoint, work: LongWork, key: str
) -> None:
    assert await own_endpoint.start(work)
    day_s = 24 * 3600
    job = {
        "input": {key: {"id": work.id, "max_runtime_sec": day_s}},
        "policy": {"executionTimeout": 1000 * day_s, "ttl": 2000 * day_s},
    }
    assert (own_endpoint.posts, own_endpoint.headers) == ([job], [f"Bearer {KEY}"])


@pytest.mark.parametrize("status", [500, 503, 429, 408, CLOSE])
async def test_what_may_pass_is_tried_again(own_endpoint: Endpoint, status: int) -> None:
    own_endpoint.statuses = [status, status, 200]
    assert await own_endpoint.start()
    assert len(own_endpoint.posts) == 3


@pytest.mark.parametrize(
    ("status", "posts", "logged"),
    [
        (500, TRIES, "500"),
        (CLOSE, TRIES, "isconnected"),
        (HANG, TRIES, "Timeout"),
        # What is refused is not sent again.
        *((status, 1, str(status)) for status in (400, 401, 403, 404)),
    ],
)
async def test_a_platform_that_stays_broken_is_left(
    own_endpoint: Endpoint,
    status: int,
    posts: int,
    logged: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if status == HANG:
        monkeypatch.setattr("worker.sending.PATIENCE", aiohttp.ClientTimeout(sock_read=0.05))
    own_endpoint.statuses = [status]
    assert not await own_endpoint.start()
    await eventually(lambda: len(own_endpoint.posts) == posts)
    (record,) = [one for one in caplog.records if one.name == "worker.sending"]
    assert record.getMessage().startswith(f"{BATCH}: ")
    assert logged in record.getMessage()
    assert KEY not in caplog.text


@pytest.mark.parametrize("missing", [[*OWN], ["BATCH_API_KEY"], ["RUNPOD_ENDPOINT_ID"]], ids=str)
def test_without_a_key_or_an_endpoint_nothing_can_be_sent(missing: list[str]) -> None:
    environ = {name: value for name, value in OWN.items() if name not in missing}
    assert Sending.of(settings(**environ)) is None


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({}, "https://api.runpod.ai/v2/ep/run"),
        ({"RUNPOD_ENDPOINT_BASE_URL": "http://here/v2"}, "http://here/v2/ep/run"),
    ],
)
def test_the_endpoint_is_the_workers_own(environ: dict[str, str], url: str) -> None:
    sending = Sending.of(settings(**OWN, **environ))
    assert sending == Sending(url, SecretStr(KEY))
    assert KEY not in repr(sending)
