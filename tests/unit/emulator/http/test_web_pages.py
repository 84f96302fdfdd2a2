"""Web pages in a browser on this machine can't call the emulator; its clients can."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from emulator import Emulator, Status

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
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Host": "example.com"},
        {"Host": "example.com:8000"},
        {"Host": "127.0.0.1.example.com"},
        {"Host": "rebound.example.com", "Origin": "http://rebound.example.com"},
        {"Host": "[::1"},
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


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:8000", "[::1]:8000", "emulator:8000", "host.docker.internal"]
)
async def test_clients_name_it_by_an_address_or_a_local_name(emulator: Emulator, host: str) -> None:
    assert await status_of(f"{emulator.url}/run", Host=host) == 200
    assert await status_of(f"{emulator.url}/run", Host=host, Origin=f"http://{host}") == 200
