"""Workers as processes with one volume: who downloads, who waits, and how a download ends.

Why a model is unavailable, and what is repaired, tests/unit/store shows; a start that fails for
that, test_failed_start.py.
"""

from contextlib import ExitStack
from pathlib import Path

import pytest
from support.hub.downloads import (
    HARDLY,
    PREFETCH,
    SLOWLY,
    assert_ends,
    assert_prefetched,
    contents,
    environ,
    found,
    hold,
    sent,
    sent_once,
    size,
)
from support.hub.server import Hub
from support.processes.background import background, wait_until
from support.processes.commands import run
from support.volume.disks import fill, mounted, remount

from worker.store import Found
from worker.store.files import INDEX

WAITING = "another worker downloads it"
# Bytes of a small disk.
ROOM = 8_000_000


def test_eight_workers_that_start_together_download_every_file_once(
    hub: Hub, model_repository: Path, volume: Path, tmp_path: Path
) -> None:
    hub.throttle = HARDLY
    with ExitStack() as stack:
        workers = [
            stack.enter_context(background(PREFETCH, environ(hub, volume), tmp_path / f"log-{n}"))
            for n in range(8)
        ]
        wait_until(lambda: sum(WAITING in worker.output for worker in workers) == 7)
        assert not isinstance(found(volume), Found)
        hub.throttle = None
        assert [worker.ended() for worker in workers] == [0] * 8
    assert sent_once(hub, model_repository)
    there = found(volume)
    assert isinstance(there, Found)
    assert contents(there.place) == contents(model_repository)
    line = f"commit {str(there.commit)[:12]}: {there.place}"
    assert all(line in worker.output for worker in workers)


def test_a_prefetch_that_is_terminated_hands_over_at_once(
    hub: Hub, model_repository: Path, volume: Path, tmp_path: Path
) -> None:
    with background(PREFETCH, environ(hub, volume), tmp_path / "log") as worker:
        hold(hub, model_repository)
        assert_ends(worker, volume)
    assert not isinstance(found(volume), Found)
    hub.throttle = None
    # It did not wait for a lease that has no holder any more.
    assert WAITING not in assert_prefetched(hub, model_repository, volume).stderr
    assert sent(hub) < 1.5 * size(model_repository)


def test_a_disk_that_fills_up_during_a_download_is_reported_and_the_files_are_kept(
    hub: Hub, model_repository: Path, tmp_path: Path
) -> None:
    with mounted(tmp_path / "disk", ROOM) as disk:
        with background(PREFETCH, environ(hub, disk), tmp_path / "log") as worker:
            hold(hub, model_repository)
            filler = fill(disk)
            hub.throttle = SLOWLY
            assert worker.ended() == 1
        assert "not enough room" in worker.output
        assert "BASE_PATH" in worker.output
        assert "Traceback" not in worker.output
        assert not isinstance(found(disk), Found)
        hub.throttle = None
        filler.unlink()
        assert WAITING not in assert_prefetched(hub, model_repository, disk).stderr
    assert sent(hub) < 1.5 * size(model_repository)


@pytest.mark.slow
def test_a_read_only_volume_is_reported_and_serves_the_models_on_it(
    hub: Hub, model_repository: Path, tmp_path: Path
) -> None:
    with mounted(tmp_path / "disk", ROOM) as disk:
        remount(disk, "ro")
        refused = run(environ(hub, disk), *PREFETCH)
        assert refused.returncode == 1
        assert all(text in refused.stderr for text in ("Read-only file system", "BASE_PATH"))
        remount(disk, "rw")
        assert_prefetched(hub, model_repository, disk)
        remount(disk, "ro")
        there = found(disk)
        assert isinstance(there, Found)
        assert contents(there.place) == contents(model_repository)


@pytest.mark.slow
def test_links_that_do_not_lead_to_their_content_are_repaired_without_a_download(
    hub: Hub, model_repository: Path, volume: Path
) -> None:
    assert_prefetched(hub, model_repository, volume)
    there = found(volume)
    assert isinstance(there, Found)
    names = ("config.json", "tokenizer.json", "generation_config.json", INDEX)
    to_itself, to_nowhere, to_another, no_link = (there.place / name for name in names)
    for file in (to_itself, to_nowhere, to_another, no_link):
        file.unlink()
    to_itself.symlink_to(to_itself.name)
    to_nowhere.symlink_to("nowhere")
    to_another.symlink_to(next(there.place.glob("*.safetensors")).name)
    no_link.write_bytes(bytes((model_repository / INDEX).stat().st_size))
    assert not isinstance(found(volume), Found)
    assert_prefetched(hub, model_repository, volume)
    assert sent_once(hub, model_repository)
