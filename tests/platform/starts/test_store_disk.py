"""Disks that are full or read-only, dangling links: one line a fault, and the next start works."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.disks import fill, mounted, remount
from support.hub.downloads import (
    NAME,
    PREFETCH,
    SLOWLY,
    assert_prefetched,
    assert_refused,
    cache,
    contents,
    environ,
    found,
    hold,
    hub_with,
    sent,
    sent_once,
    size,
)
from support.hub.server import Hub
from support.processes.background import background
from support.processes.commands import run

from worker.store import Found
from worker.store.files import INDEX

ROOM = 8_000_000


@pytest.fixture
def served(source: Path) -> Iterator[Hub]:
    with hub_with(source) as running:
        yield running


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", ROOM) as place:
        yield place


@pytest.mark.parametrize("left", [0, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_a_disk_without_room_is_reported_before_anything_is_downloaded(
    served: Hub, source: Path, disk: Path, left: int
) -> None:
    filler = fill(disk, left)
    refused = run(environ(served, disk), *PREFETCH)
    assert_refused(refused, NAME, "not enough room", "BASE_PATH")
    assert sent(served) < 1000
    assert not isinstance(found(disk), Found)
    filler.unlink()
    mended(served, source, disk)


def test_a_disk_that_fills_up_during_a_download_is_reported_and_the_files_are_kept(
    served: Hub, source: Path, disk: Path, tmp_path: Path
) -> None:
    with background(PREFETCH, environ(served, disk), tmp_path / "log") as worker:
        hold(served, source)
        filler = fill(disk)
        served.throttle = SLOWLY
        assert worker.ended() == 1
    assert "not enough room" in worker.output
    assert "BASE_PATH" in worker.output
    assert "Traceback" not in worker.output
    assert not isinstance(found(disk), Found)
    served.throttle = None
    filler.unlink()
    mended(served, source, disk)
    assert sent(served) < 1.5 * size(source)


@pytest.mark.slow
def test_a_read_only_volume_is_reported_and_serves_the_models_on_it(
    served: Hub, source: Path, disk: Path
) -> None:
    remount(disk, "ro")
    refused = run(environ(served, disk), *PREFETCH)
    assert_refused(refused, NAME, "Read-only file system", "BASE_PATH")
    remount(disk, "rw")
    mended(served, source, disk)
    remount(disk, "ro")
    there = found(disk)
    assert isinstance(there, Found)
    assert contents(there.place) == contents(source)


@pytest.mark.slow
def test_a_base_path_that_leads_to_itself_is_reported(
    served: Hub, source: Path, tmp_path: Path
) -> None:
    base = tmp_path / "volume"
    base.symlink_to(base)
    refused = run(environ(served, base), *PREFETCH)
    assert refused.returncode == 1
    printed = refused.stdout + refused.stderr
    assert f"BASE_PATH = '{base}': it can't be read: Too many levels of symbolic links" in printed
    assert "Traceback" not in printed
    base.unlink()
    base.mkdir()
    mended(served, source, base)


@pytest.mark.slow
def test_a_folder_of_a_model_that_leads_to_itself_is_reported(
    served: Hub, source: Path, tmp_path: Path
) -> None:
    folder = cache(tmp_path) / "models--org--model"
    folder.parent.mkdir(parents=True)
    folder.symlink_to(folder)
    refused = run(environ(served, tmp_path), *PREFETCH)
    assert_refused(refused, NAME, "symbolic links", str(folder))
    folder.unlink()
    mended(served, source, tmp_path)


@pytest.mark.slow
def test_links_that_do_not_lead_to_their_content_are_repaired_without_a_download(
    served: Hub, source: Path, tmp_path: Path
) -> None:
    assert_prefetched(served, source, tmp_path)
    there = found(tmp_path)
    assert isinstance(there, Found)
    to_itself, to_nowhere, to_another, no_link = (
        there.place / name
        for name in ("config.json", "tokenizer.json", "generation_config.json", INDEX)
    )
    for file in (to_itself, to_nowhere, to_another, no_link):
        file.unlink()
    to_itself.symlink_to(to_itself.name)
    to_nowhere.symlink_to("nowhere")
    to_another.symlink_to(next(there.place.glob("*.safetensors")).name)
    no_link.write_bytes(bytes((source / INDEX).stat().st_size))
    assert not isinstance(found(tmp_path), Found)
    mended(served, source, tmp_path)
    assert sent_once(served, source)


def mended(served: Hub, source: Path, base: Path) -> None:
    """Check that the next start downloads what is missing, and waits for no other worker."""
    assert "another worker downloads it" not in assert_prefetched(served, source, base).stderr
