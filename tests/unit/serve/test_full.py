"""More than the server can hold: requests, their bodies, and forms on the worker's own disk."""

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
from support.served import HELLO, Served, error_of
from support.volume.disks import fill, mounted

from worker.errors import EngineBusy
from worker.serve.bodies import MOST_HELD, Bodies

LARGEST = 100
ROOM = 4_000_000


async def test_while_it_is_aside_answers_say_when_to_try_again(http_client: Served) -> None:
    async with http_client.engine.engines.aside(patience_s=0.1):
        refused = await http_client.post(CHAT, json=HELLO)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "60")
        assert (await http_client.get("/ping")).status_code == 200
        assert (await http_client.get("/health")).status_code == 503
    assert (await http_client.post(CHAT, json=HELLO)).status_code == 200


def request(size: int, last: asyncio.Event | float = 0) -> Request:
    """Return a request whose body's last byte comes after an event, or some seconds."""
    parts = [b"a" * (size - 1), b"a"]

    async def receive() -> dict[str, Any]:
        if len(parts) == 1:
            await (last.wait() if isinstance(last, asyncio.Event) else asyncio.sleep(last))
        part = parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


async def test_all_bodies_together_are_limited_until_some_are_whole() -> None:
    bodies, whole = Bodies(LARGEST, patience_s=60), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for _ in range(MOST_HELD):
            group.create_task(bodies.read(request(LARGEST, whole)))
        # Each reads its first part in a few turns of the loop.
        for _ in range(100):
            await asyncio.sleep(0)
        with pytest.raises(EngineBusy):
            await bodies.read(request(LARGEST))
        whole.set()
    # Those that were refused are not held either.
    for _ in range(2 * MOST_HELD):
        assert await bodies.read(request(LARGEST)) == b"a" * LARGEST


async def test_a_slow_body_that_is_no_slower_than_it_may_be_is_read() -> None:
    # What came of it is time for the rest: five minutes.
    size, patience_s = 3_000_000, 0.01
    bodies = Bodies(size, patience_s)
    assert len(await bodies.read(request(size, 10 * patience_s))) == size


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Mount a small disk for what is temporary."""
    with mounted(tmp_path / "disk", ROOM) as place:
        monkeypatch.setenv("TMPDIR", str(place))
        # Or the place that was found before is used.
        monkeypatch.setattr(tempfile, "tempdir", None)
        assert tempfile.gettempdir() == str(place)
        yield place


@pytest.mark.parametrize("left", [0, ROOM])
async def test_a_form_that_does_not_fit_on_the_workers_disk_is_refused_and_leaves_nothing(
    tmp_path: Path, engine: ScriptedEngine, disk: Path, left: int
) -> None:
    root = tmp_path / "volume"
    filler = fill(disk, left)
    free = shutil.disk_usage(disk).free
    async with Served(engine, FILES_PATH=str(root)) as http_client:

        async def upload(size: int) -> httpx.Response:
            files = {"file": ("a.jsonl", bytes(size))}
            return await http_client.post("/v1/files", files=files)

        refused = await upload(2 * ROOM)
        assert refused.status_code == 507
        message = "The worker's own disk fails: No space left on device."
        assert error_of(refused)["message"] == message
        assert [*root.rglob("*")] == []
        assert shutil.disk_usage(disk).free == free
        # A small one needs no disk.
        assert (await upload(1000)).status_code == 200
        filler.unlink()
        assert (await upload(ROOM // 2)).json()["bytes"] == ROOM // 2
