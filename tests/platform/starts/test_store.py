"""Tests of several worker processes that download to one volume.

tests/unit/store tests the reasons for unavailable models, and repairs. test_failed_start.py tests
startups that fail because of an unavailable model.
"""

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.hub.downloads import (
    PREFETCH,
    SLOW_RATE,
    TRICKLE_RATE,
    assert_prefetched,
    bytes_sent,
    content_hashes,
    leases,
    repository_size,
    resolve_repository,
    slow_down,
    was_sent_once,
    worker_environ,
)
from support.hub.server import Hub
from support.processes.background import pids_with_variable, start_command, wait_until
from support.processes.commands import run_command
from support.volume import fill, mount_disk, remount

from worker.store import ArtifactLocation

WAITING = "another worker is downloading it"
# Bytes of a small disk.
DISK_SIZE = 8_000_000


@pytest.mark.slow
def test_workers_that_start_together_download_every_file_once(
    hub: Hub, model_repository: Path, volume: Path, tmp_path: Path
) -> None:
    hub.throttle = TRICKLE_RATE
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                start_command(PREFETCH, worker_environ(hub, volume), tmp_path / f"log-{n}")
            )
            for n in range(4)
        ]
        wait_until(lambda: sum(WAITING in worker.output for worker in workers) == 3)
        assert not isinstance(resolve_repository(volume), ArtifactLocation)
        hub.throttle = None
        assert [worker.wait_for_exit() for worker in workers] == [0] * 4
    assert was_sent_once(hub, model_repository)
    location = resolve_repository(volume)
    assert isinstance(location, ArtifactLocation)
    assert content_hashes(location.directory) == content_hashes(model_repository)
    line = f"commit {str(location.commit)[:12]}: {location.directory}"
    assert all(line in worker.output for worker in workers)


@pytest.mark.slow
def test_a_terminated_prefetch_releases_its_lease_immediately(
    hub: Hub, model_repository: Path, volume: Path, tmp_path: Path
) -> None:
    with start_command(PREFETCH, worker_environ(hub, volume), tmp_path / "log") as worker:
        slow_down(hub, model_repository)
        worker.process.send_signal(signal.SIGTERM)
        assert worker.wait_for_exit() == 128 + signal.SIGTERM, worker.output
        assert "Traceback" not in worker.output
        assert leases(volume) == []
        assert pids_with_variable("BASE_PATH", str(volume)) == []
    assert not isinstance(resolve_repository(volume), ArtifactLocation)
    hub.throttle = None
    # The next worker did not wait for the lease of the stopped one.
    assert WAITING not in assert_prefetched(hub, model_repository, volume).stderr
    assert bytes_sent(hub) < 1.5 * repository_size(model_repository)


@pytest.mark.slow
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
