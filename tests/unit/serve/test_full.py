"""Load above the server's capacity: requests, their bodies, and forms on the worker's own disk."""

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from support.engine.scripted import CHAT, ScriptedEngine
from support.serve_client import HELLO, ServeClient, error_of
from support.volume import fill, mount_disk

from worker.errors import EngineBusy
from worker.serve.bodies import MAX_BUFFERED_BODIES, MIN_RATE, BodyReader, InvalidBody

MAX_BODY_BYTES = 100_000
DISK_BYTES = 4_000_000


async def test_requests_to_a_suspended_engine_are_refused_with_retry_after(
    http_client: ServeClient,
) -> None:
    async with http_client.engine.engines.suspend(wait_timeout_s=0.1):
        response = await http_client.post(CHAT, json=HELLO)
        assert (response.status_code, response.headers["retry-after"]) == (503, "60")
        assert (await http_client.get("/ping")).status_code == 200
        assert (await http_client.get("/health")).status_code == 503
    assert (await http_client.post(CHAT, json=HELLO)).status_code == 200


def make_request(*parts: tuple[float | asyncio.Event, int]) -> Request:
    """Return a request; each part has a number of bytes and arrives after seconds or an event."""
    remaining = [*parts]

    async def receive() -> dict[str, Any]:
        pause, size = remaining.pop(0)
        await (asyncio.sleep(pause) if isinstance(pause, float) else pause.wait())
        return {"type": "http.request", "body": b"a" * size, "more_body": bool(remaining)}

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


async def test_the_number_of_incomplete_bodies_is_limited() -> None:
    reader, is_complete = BodyReader(MAX_BODY_BYTES, timeout_s=60), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for _ in range(MAX_BUFFERED_BODIES):
            request = make_request((0.0, MAX_BODY_BYTES - 1), (is_complete, 1))
            group.create_task(reader.read(request))
        # Each task reads its first part in a few turns of the loop.
        for _ in range(100):
            await asyncio.sleep(0)
        with pytest.raises(EngineBusy):
            await reader.read(make_request((0.0, MAX_BODY_BYTES)))
        assert await reader.read(make_request((0.0, 1_000))) == b"a" * 1_000
        is_complete.set()
    # Refused bodies use no capacity.
    for _ in range(2 * MAX_BUFFERED_BODIES):
        assert len(await reader.read(make_request((0.0, MAX_BODY_BYTES)))) == MAX_BODY_BYTES


async def test_a_body_at_the_minimum_speed_is_read_for_any_time() -> None:
    # Each part earns the time of the next one, so that all together may exceed the timeout.
    part = (0.1, MIN_RATE)
    reader = BodyReader(100 * MIN_RATE, timeout_s=0.5)
    assert len(await reader.read(make_request(*[part] * 8))) == 8 * MIN_RATE


async def test_a_pause_may_not_exceed_the_timeout_however_much_has_arrived() -> None:
    reader = BodyReader(100 * MIN_RATE, timeout_s=0.1)
    with pytest.raises(InvalidBody, match=r"paused for longer than 0\.1 s") as exc_info:
        await reader.read(make_request((0.0, 90 * MIN_RATE), (60.0, 1)))
    assert exc_info.value.status == 408


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small disk for temporary files."""
    with mount_disk(tmp_path / "disk", DISK_BYTES) as path:
        monkeypatch.setenv("TMPDIR", str(path))
        # tempfile caches the directory.
        monkeypatch.setattr(tempfile, "tempdir", None)
        assert tempfile.gettempdir() == str(path)
        yield path


@pytest.mark.parametrize("free_bytes", [0, DISK_BYTES])
async def test_a_form_that_does_not_fit_on_the_workers_disk_is_refused_and_stores_nothing(
    tmp_path: Path, engine: ScriptedEngine, disk: Path, free_bytes: int
) -> None:
    root = tmp_path / "volume"
    filler = fill(disk, free_bytes)
    free = shutil.disk_usage(disk).free
    async with ServeClient(engine, FILES_PATH=str(root)) as http_client:

        async def upload(size: int) -> httpx.Response:
            files = {"file": ("a.jsonl", bytes(size))}
            return await http_client.post("/v1/files", files=files)

        response = await upload(2 * DISK_BYTES)
        assert response.status_code == 507
        message = "The worker's own disk fails: No space left on device."
        assert error_of(response)["message"] == message
        assert [*root.rglob("*")] == []
        assert shutil.disk_usage(disk).free == free
        # A small form needs no disk space.
        assert (await upload(1000)).status_code == 200
        filler.unlink()
        assert (await upload(DISK_BYTES // 2)).json()["bytes"] == DISK_BYTES // 2
