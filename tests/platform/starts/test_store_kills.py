"""Tests of workers killed during a download: partial files are resumed, but not loaded."""

import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT
from support.hub.downloads import NAME, bytes_sent, content_hashes, repository_size
from support.hub.server import Hub, commit_id
from support.processes.background import wait_until
from support.processes.commands import HOME

from worker.store import Artifact, ArtifactLocation, Places, resolve_on_disk
from worker.store.fetcher import ORDER_ADAPTER, FetchOrder, ModelFetcher

# Bytes per second: slow enough to kill the worker in the middle.
THROTTLE = 600_000


# The other worker waits 15 s for the lease of the killed one.
@pytest.mark.slow
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.9, 1.0])
def test_the_next_worker_completes_a_killed_download_and_little_is_sent_twice(
    hub: Hub, model_repository: Path, volume: Path, share: float
) -> None:
    artifact, places = Artifact(NAME), Places(volume / "cache", volume / "nothing")
    environ = {**HOME, "HF_HOME": str(volume), "HF_ENDPOINT": hub.endpoint}
    size, content = repository_size(model_repository), content_hashes(model_repository)
    hub.throttle = THROTTLE
    # As a worker starts it.
    command = [sys.executable, "-m", "worker.store.download"]
    with subprocess.Popen(
        command,
        env={**environ, "PYTHONPATH": str(ROOT / "src")},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdin
        with process.stdin:
            process.stdin.write(ORDER_ADAPTER.dump_json(FetchOrder([artifact], places)))
        wait_until(lambda: bytes_sent(hub) >= share * size)
        process.kill()
    # Looks up the commit, which works without a ref.
    found = resolve_on_disk(Artifact(NAME, commit_id(model_repository)), places)
    if isinstance(found, ArtifactLocation):
        assert (share, content_hashes(found.directory)) == (1.0, content)

    hub.throttle = None
    completed = ModelFetcher([artifact], places, environ).wait_for_locations()[artifact]
    assert content_hashes(completed.directory) == content
    assert all(hub.max_sends(NAME, file) <= 2 for file in content)
    # Only bytes in transit are lost.
    assert bytes_sent(hub) < 1.3 * size
