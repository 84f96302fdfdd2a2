"""Tests of several worker processes that download to one volume.

tests/unit/store tests the reasons for unavailable models, and repairs. test_failed_start.py tests
startups that fail because of an unavailable model.
"""

from contextlib import ExitStack
from pathlib import Path

import pytest
from support.hub.downloads import (
    PREFETCH,
    SLOW_RATE,
    TRICKLE_RATE,
    assert_prefetched,
    assert_sigterm_stops,
    bytes_sent,
    content_hashes,
    repository_size,
    resolve_repository,
    slow_down,
    was_sent_once,
    worker_environ,
)
from support.hub.server import Hub
from support.processes.background import start_command, wait_until
from support.processes.commands import run_command
from support.volume import fill, mount_disk, remount

from worker.store import ArtifactLocation
from worker.store.files import INDEX

WAITING = "another worker is downloading it"
# Bytes of a small disk.
DISK_SIZE = 8_000_000


def test_eight_workers_that_start_together_download_every_file_once(
    hub: Hub, model_repository: Path, volume: Path, tmp_path: Path
) -> None:
    hub.throttle = TRICKLE_RATE
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                start_command(PREFETCH, worker_environ(hub, volume), tmp_path / f"log-{n}")
            )
            for n in range(8)
        ]
        wait_until(lambda: sum(WAITING in worker.output for worker in workers) == 7)
        assert not isinstance(resolve_repository(volume), ArtifactLocation)
        hub.throttle = None
        assert [worker.wait_for_exit() for worker in workers] == [0] * 8
    assert was_sent_once(hub, model_repository)
    location = resolve_repository(volume)
    assert isinstance(location, ArtifactLocation)
    assert content_hashes(location.directory) == content_hashes(model_repository)
    line = f"commit {str(location.commit)[:12]}: {location.directory}"
    assert all(line in worker.output for worker in workers)


def test_a_terminated_prefetch_releases_its_lease_immediately(
    hub: Hub, model_repository: Path, volume: Path, tmp_path: Path
) -> None:
    with start_command(PREFETCH, worker_environ(hub, volume), tmp_path / "log") as worker:
        slow_down(hub, model_repository)
        assert_sigterm_stops(worker, volume)
    assert not isinstance(resolve_repository(volume), ArtifactLocation)
    hub.throttle = None
    # The next worker did not wait for the lease of the stopped one.
    assert WAITING not in assert_prefetched(hub, model_repository, volume).stderr
    assert bytes_sent(hub) < 1.5 * repository_size(model_repository)


def test_a_full_disk_is_reported_and_the_next_worker_resumes_the_download(
    hub: Hub, model_repository: Path, tmp_path: Path
) -> None:
    with mount_disk(tmp_path / "disk", DISK_SIZE) as disk:
        with start_command(PREFETCH, worker_environ(hub, disk), tmp_path / "log") as worker:
            slow_down(hub, model_repository)
            filler = fill(disk)
            hub.throttle = SLOW_RATE
            assert worker.wait_for_exit() == 1
        assert "not enough space" in worker.output
        assert "BASE_PATH" in worker.output
        assert "Traceback" not in worker.output
        assert not isinstance(resolve_repository(disk), ArtifactLocation)
        hub.throttle = None
        filler.unlink()
        assert WAITING not in assert_prefetched(hub, model_repository, disk).stderr
    assert bytes_sent(hub) < 1.5 * repository_size(model_repository)


@pytest.mark.slow
def test_a_read_only_volume_is_reported_and_still_serves_its_models(
    hub: Hub, model_repository: Path, tmp_path: Path
) -> None:
    with mount_disk(tmp_path / "disk", DISK_SIZE) as disk:
        remount(disk, "ro")
        refused = run_command(worker_environ(hub, disk), *PREFETCH)
        assert refused.returncode == 1
        assert all(text in refused.stderr for text in ("Read-only file system", "BASE_PATH"))
        remount(disk, "rw")
        assert_prefetched(hub, model_repository, disk)
        remount(disk, "ro")
        location = resolve_repository(disk)
        assert isinstance(location, ArtifactLocation)
        assert content_hashes(location.directory) == content_hashes(model_repository)


@pytest.mark.slow
def test_broken_links_are_repaired_without_a_download(
    hub: Hub, model_repository: Path, volume: Path
) -> None:
    assert_prefetched(hub, model_repository, volume)
    location = resolve_repository(volume)
    assert isinstance(location, ArtifactLocation)
    names = ("config.json", "tokenizer.json", "generation_config.json", INDEX)
    to_itself, to_nowhere, to_another, no_link = (location.directory / name for name in names)
    for file in (to_itself, to_nowhere, to_another, no_link):
        file.unlink()
    to_itself.symlink_to(to_itself.name)
    to_nowhere.symlink_to("nowhere")
    to_another.symlink_to(next(location.directory.glob("*.safetensors")).name)
    no_link.write_bytes(bytes((model_repository / INDEX).stat().st_size))
    assert not isinstance(resolve_repository(volume), ArtifactLocation)
    assert_prefetched(hub, model_repository, volume)
    assert was_sent_once(hub, model_repository)
