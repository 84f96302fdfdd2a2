"""Web pages in a browser on this machine can't call the emulator; its clients can."""

from collections.abc import AsyncIterator

import aiohttp
import pytest
from support.tables import web_pages
from yarl import URL

from emulator import Emulator, Options, Status

JOB = b'{"input": {"prompt": "Hi"}}'


@pytest.fixture
async def emulator() -> AsyncIterator[Emulator]:
    async with Emulator() as running:
        yield running


async def status_of(url: str, **headers: str) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=JOB, headers=headers) as answer,
    ):
        return answer.status


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://example.com"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "rebound.example.com", "Origin": "http://rebound.example.com"},
    ],
)
async def test_what_a_page_of_another_site_can_send_is_refused(
    emulator: Emulator, headers: dict[str, str]
) -> None:
    job = emulator.queue.submit({"input": {}})
    emulator.queue.take(emulator.queue.worker("w"), 1)
    for path in ("/run", "/openai/v1/chat/completions", "/purge-queue", f"/cancel/{job.id}"):
        assert await status_of(emulator.url + path, **headers) == 403
    for path in (f"/job-done/w/{job.id}", f"/job-stream/w/{job.id}"):
        assert await status_of(emulator.worker_url + path, **headers) == 403
    assert job.status is Status.IN_PROGRESS
    assert len(emulator.queue.jobs) == 1


@pytest.mark.parametrize(("headers", "answered"), web_pages.ANSWERED)
async def test_programs_are_answered_and_a_web_page_takes_no_job(
    emulator: Emulator, headers: dict[str, str], answered: bool
) -> None:
    job = emulator.queue.submit({"input": {}})
    asked = (
        (emulator.root_url, "/v2/local/health"),
        (str(URL(emulator.worker_url).origin()), "/v2/local/job-take/x"),
    )
    for url, path in asked:
        assert await web_pages.status(url, headers, path) == (200 if answered else 403)
    assert job.status is (Status.IN_PROGRESS if answered else Status.IN_QUEUE)


async def test_workers_and_callers_reach_one_that_listens_on_all_addresses() -> None:
    async with Emulator(Options(host="0.0.0.0")) as emulator:
        urls = emulator.url, emulator.worker_url, emulator.root_url
        assert {URL(url).host for url in urls} == {"127.0.0.1"}
        assert await status_of(f"{emulator.url}/run") == 200
        assert await status_of(f"{emulator.worker_url}/purge-queue") == 200
