"""The job that runs a batch or a fine-tune is sent to the worker's own endpoint, here a server."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import SecretStr
from support.engine.scripted import settings

from worker.job.long_work import LongWork
from worker.sending import TRIES, Sending

KEY = "rp-the-key"
BATCH = LongWork("batch", "batch_" + "a" * 24)
# The server does not answer.
HANG, CLOSE = 0, 1


class Platform:
    """Answers posts with these statuses, one after the other; the last one stays."""

    def __init__(self) -> None:
        self.statuses = [200]
        self.posts: list[Any] = []
        self.headers: list[str | None] = []
        self.server = TestServer(web.Application())
        self.server.app.router.add_post("/v2/ep/run", self._run)

    async def _run(self, request: web.Request) -> web.Response:
        self.posts.append(await request.json())
        self.headers.append(request.headers.get("authorization"))
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        if status == HANG:
            await asyncio.sleep(60)
        if status == CLOSE and request.transport is not None:
            request.transport.abort()
        return web.json_response({"id": "a", "status": "IN_QUEUE"}, status=max(status, 200))

    @property
    def sending(self) -> Sending:
        return Sending(str(self.server.make_url("/v2/ep/run")), SecretStr(KEY))


@pytest.fixture
async def platform(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Platform]:
    monkeypatch.setattr("worker.sending.PAUSE_S", 0.001)
    platform = Platform()
    async with platform.server:
        yield platform


async def test_the_job_goes_on_with_the_batch_and_has_as_long_as_the_platform_allows(
    platform: Platform,
) -> None:
    assert await platform.sending.start(BATCH)
    day_s = 24 * 3600
    job = {
        "input": {"batch": {"id": BATCH.id, "max_runtime_sec": day_s}},
        "policy": {"executionTimeout": 1000 * day_s, "ttl": 2000 * day_s},
    }
    assert (platform.posts, platform.headers) == ([job], [f"Bearer {KEY}"])


async def test_the_job_of_a_fine_tune_is_sent_likewise(platform: Platform) -> None:
    assert await platform.sending.start(LongWork("fine_tune", "ftjob-a"))
    spec = {"id": "ftjob-a", "max_runtime_sec": 24 * 3600}
    assert platform.posts[0]["input"] == {"fine_tune": spec}


@pytest.mark.parametrize("status", [500, 503, 429, 408, CLOSE])
async def test_what_another_try_can_help_is_tried_again(platform: Platform, status: int) -> None:
    platform.statuses = [status, status, 200]
    assert await platform.sending.start(BATCH)
    assert len(platform.posts) == 3


@pytest.mark.parametrize("status", [500, CLOSE])
async def test_a_platform_that_stays_broken_is_left(
    platform: Platform, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    platform.statuses = [status]
    assert not await platform.sending.start(BATCH)
    assert len(platform.posts) == TRIES
    assert BATCH.id in caplog.text
    assert KEY not in caplog.text


@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_what_is_refused_is_not_sent_again(
    platform: Platform, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    platform.statuses = [status, 200]
    assert not await platform.sending.start(BATCH)
    assert len(platform.posts) == 1
    assert str(status) in caplog.text
    assert KEY not in caplog.text


async def test_a_platform_that_does_not_answer_is_not_waited_for(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("worker.sending.PATIENCE", aiohttp.ClientTimeout(total=0.2))
    platform.statuses = [HANG]
    assert not await platform.sending.start(BATCH)
    assert len(platform.posts) == TRIES
    (record,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert "Timeout" in record.getMessage()


async def test_a_platform_that_is_not_there_is_left(platform: Platform) -> None:
    sending = platform.sending
    await platform.server.close()
    assert not await sending.start(BATCH)


@pytest.mark.parametrize(
    "environ", [{}, {"BATCH_API_KEY": KEY}, {"RUNPOD_ENDPOINT_ID": "ep"}], ids=str
)
def test_without_a_key_or_an_endpoint_nothing_can_be_sent(environ: dict[str, str]) -> None:
    assert Sending.of(settings(**environ)) is None


def test_the_endpoint_is_the_workers_own() -> None:
    environ = {"BATCH_API_KEY": KEY, "RUNPOD_ENDPOINT_ID": "ep"}
    assert Sending.of(settings(**environ)) == Sending(
        "https://api.runpod.ai/v2/ep/run", SecretStr(KEY)
    )
    other = Sending.of(settings(**environ, RUNPOD_ENDPOINT_BASE_URL="http://here/v2"))
    assert other is not None
    assert other.url == "http://here/v2/ep/run"
    assert KEY not in repr(other)
