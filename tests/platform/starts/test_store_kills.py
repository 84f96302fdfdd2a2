"""Tests of workers killed during a download: partial files are resumed, but not loaded."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from support import ROOT
from support.hub.downloads import (
    bytes_sent,
    content_hashes,
    hub_with,
    make_repository,
    repository_size,
)
from support.hub.server import Hub, commit_id
from support.processes.background import wait_until
from support.processes.commands import HOME

from worker.store import Artifact, ArtifactLocation, Places, resolve_on_disk
from worker.store.fetcher import ORDER_ADAPTER, FetchOrder, ModelFetcher

# Other workers wait 15 s for the lease of a killed worker.
pytestmark = pytest.mark.slow

ROUNDS = 20
# Bytes per second of all rounds together.
THROTTLE = 6_000_000


@pytest.fixture(scope="module")
def model_repository(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("source") / "files", demo_model, shards=4)


@pytest.fixture(scope="module")
def hub(model_repository: Path) -> Iterator[Hub]:
    with hub_with(model_repository) as running:
        yield running


class InterruptedDownload(NamedTuple):
    """A volume on which a worker was killed during its download, which another worker completed.

    ``trusted`` are the files that a worker would have loaded after the kill, if any.
    """

    name: str
    sent: int
    trusted: dict[str, str] | None
    completed: dict[str, str]


def start_download(
    artifact: Artifact, places: Places, environ: dict[str, str]
) -> "subprocess.Popen[bytes]":
    """Start the download process in the same way as a worker."""
    process = subprocess.Popen(
        [sys.executable, "-m", "worker.store.download"],
        env={**environ, "PYTHONPATH": str(ROOT / "src")},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin
    with process.stdin:
        process.stdin.write(ORDER_ADAPTER.dump_json(FetchOrder([artifact], places)))
    return process


@pytest.fixture(scope="module")
def interrupted_downloads(
    hub: Hub, model_repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[InterruptedDownload]:
    """Kill concurrent workers, each after a random number of bytes; complete their downloads."""
    folder, rng = tmp_path_factory.mktemp("volumes"), Random(155)
    environ = {**HOME, "HF_HOME": str(folder), "HF_ENDPOINT": hub.endpoint}
    hub.throttle = THROTTLE
    running = []
    for number in range(ROUNDS):
        hub.add(f"org/{number}", model_repository)
        artifact = Artifact(f"org/{number}")
        places = Places(folder / str(number), folder / "nothing")
        due = min(rng.uniform(0, 1.05), 1) * repository_size(model_repository)
        running.append((due, artifact, places, start_download(artifact, places, environ)))
    killed = []

    def kill_due_workers() -> bool:
        for trial in tuple(running):
            due, artifact, places, process = trial
            if bytes_sent(hub, artifact.model) >= due:
                process.kill()
                process.communicate()
                # Looks up the commit, which works without a ref.
                location = resolve_on_disk(
                    replace(artifact, revision=commit_id(model_repository)), places
                )
                trusted = (
                    content_hashes(location.directory)
                    if isinstance(location, ArtifactLocation)
                    else None
                )
                killed.append((artifact, places, bytes_sent(hub, artifact.model), trusted))
                running.remove(trial)
        return not running

    wait_until(kill_due_workers)
    hub.throttle = None
    others = [ModelFetcher([artifact], places, environ) for artifact, places, *_ in killed]
    return [
        InterruptedDownload(
            artifact.model,
            before,
            trusted,
            content_hashes(other.wait_for_locations()[artifact].directory),
        )
        for (artifact, _, before, trusted), other in zip(killed, others, strict=True)
    ]


def test_the_files_of_a_killed_worker_are_loaded_only_if_they_are_complete(
    interrupted_downloads: list[InterruptedDownload], model_repository: Path
) -> None:
    parts = [one.sent / repository_size(model_repository) for one in interrupted_downloads]
    assert (min(parts) < 0.4, max(parts) > 0.7) == (True, True)
    trusted = [one.trusted for one in interrupted_downloads if one.trusted is not None]
    assert len(trusted) < ROUNDS
    assert all(files == content_hashes(model_repository) for files in trusted)


def test_the_next_worker_completes_the_download_and_little_is_sent_twice(
    interrupted_downloads: list[InterruptedDownload], hub: Hub, model_repository: Path
) -> None:
    right = content_hashes(model_repository)
    assert all(one.completed == right for one in interrupted_downloads)
    assert all(
        hub.max_sends(one.name, file) <= 2 for one in interrupted_downloads for file in right
    )
    # Only bytes in transit are lost.
    assert sum(
        bytes_sent(hub, one.name) for one in interrupted_downloads
    ) < 1.2 * ROUNDS * repository_size(model_repository)
