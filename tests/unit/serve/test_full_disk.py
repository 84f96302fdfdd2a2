"""The worker's own disk, where a form waits until all of it is there, has no room for it."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.disks import fill, mounted
from support.engine.scripted import ScriptedEngine
from support.served import client, error_of

FILES = "/v1/files"
ROOM = 4_000_000


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Mount a small disk for what is temporary."""
    with mounted(tmp_path / "disk", ROOM) as place:
        monkeypatch.setenv("TMPDIR", str(place))
        # Or the place that was found before is used.
        monkeypatch.setattr(tempfile, "tempdir", None)
        assert tempfile.gettempdir() == str(place)
        yield place


async def upload(http: httpx.AsyncClient, size: int) -> httpx.Response:
    return await http.post(FILES, files={"file": ("a.jsonl", bytes(size))})


@pytest.mark.parametrize("left", [0, ROOM])
async def test_a_form_that_does_not_fit_on_the_workers_disk_is_refused_and_leaves_nothing(
    tmp_path: Path, disk: Path, left: int
) -> None:
    root = tmp_path / "volume"
    filler = fill(disk, left)
    free = shutil.disk_usage(disk).free
    with ScriptedEngine() as engine:
        async with client(engine, FILES_PATH=str(root)) as http:
            refused = await upload(http, 2 * ROOM)
            assert (refused.status_code, error_of(refused)["code"]) == (507, 507)
            told = error_of(refused)["message"]
            assert told == "The worker's own disk fails: No space left on device."
            assert [*root.rglob("*")] == []
            assert shutil.disk_usage(disk).free == free
            # A small one needs no disk.
            assert (await upload(http, 1000)).status_code == 200
            filler.unlink()
            assert (await upload(http, ROOM // 2)).json()["bytes"] == ROOM // 2
