"""Downloads in a child process, which stops immediately when it has to."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import MagicMock

import psutil
import pytest
from pydantic import TypeAdapter
from support.hub.caches import (
    ARTIFACT,
    NAME,
    WEIGHTS,
    HubAndVolume,
    assert_same_content,
    fill_cache,
)
from support.hub.server import MEMBER, blob_id, commit_id
from support.processes.background import wait_until

from worker.errors import StartFailed
from worker.store import (
    Artifact,
    ArtifactKind,
    ArtifactLocation,
    ModelUnavailable,
    Origin,
    Reason,
    UnlocatedArtifact,
    resolve_on_disk,
)
from worker.store import fetcher as module
from worker.store.download.__main__ import warn_if_cache_not_shared
from worker.store.fetcher import ModelFetcher
from worker.volume.lease import Claim

TOKENIZER = Artifact(NAME, kind=ArtifactKind.TOKENIZER, load_format="dummy")


def environ(store: HubAndVolume, **extra: str) -> dict[str, str]:
    """Return the environment of a child that waits for hours on a silent connection."""
    fixed = {"PATH": os.environ["PATH"], "HOME": "/", "HF_HUB_DOWNLOAD_TIMEOUT": "10000"}
    return {**fixed, "HF_ENDPOINT": store.hub.endpoint, **extra}


@contextmanager
def start_fetcher(
    store: HubAndVolume, *artifacts: Artifact, newest: bool = False, **extra: str
) -> Iterator[ModelFetcher]:
    """Fetch the model, or other artifacts, in a child process that is stopped on exit."""
    fetcher = ModelFetcher(artifacts or [ARTIFACT], store.places, environ(store, **extra), newest)
    try:
        yield fetcher
    finally:
        fetcher.close()


def partial_file(store: HubAndVolume) -> Path:
    return store.folder / "blobs" / f"{blob_id(store.source / WEIGHTS)}.partial"


def wait_for_owner(store: HubAndVolume, has_begun: Callable[[], object] | None = None) -> int:
    """Wait until some of the weights are on the disk; return the process that downloads them."""
    wait_until(
        has_begun or (lambda: partial_file(store).exists() and partial_file(store).stat().st_size)
    )
    lease = store.folder / ".worker" / "lease-1"
    return TypeAdapter(Claim).validate_json(lease.read_bytes()).pid


def is_released(store: HubAndVolume) -> bool:
    """Return whether another worker could continue the download immediately."""
    free = not [*(store.folder / ".worker").glob("lease-*")]
    has_content = partial_file(store).stat().st_size > 0
    return (
        free
        and has_content
        and isinstance(resolve_on_disk(ARTIFACT, store.places), UnlocatedArtifact)
    )


def test_no_process_is_started_for_artifacts_on_the_disk(
    store: HubAndVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = fill_cache(store.places.volume, store.source, with_manifest=True)
    child = MagicMock()
    monkeypatch.setattr(module, "Child", child)
    with start_fetcher(store, ARTIFACT, Artifact(str(store.source))) as fetcher:
        found = fetcher.wait_for_locations()
    assert [model.directory for model in found.values()] == [snapshot, store.source]
    child.assert_not_called()
    with start_fetcher(store, Artifact("org/other")):
        child.assert_called_once()
    # Only the hub knows whether the commit on the volume is the newest.
    with start_fetcher(store, newest=True):
        assert child.call_count == 2


def test_a_child_process_returns_the_locations_of_all_artifacts(store: HubAndVolume) -> None:
    directory = Artifact(str(store.source))
    # The child has the environment that is passed to the fetcher.
    store.hub.repositories[NAME].gated = True
    with start_fetcher(store, ARTIFACT, TOKENIZER, directory, HF_TOKEN=MEMBER) as fetcher:
        found = fetcher.wait_for_locations()
        assert fetcher.wait_for_locations() is found
    size = sum(blob.stat().st_size for blob in (store.folder / "blobs").iterdir())
    assert sum(model.downloaded_bytes for model in found.values()) == size
    assert found[ARTIFACT].download_s > 0
    place = store.folder / "snapshots" / commit_id(store.source)
    assert found[directory] == ArtifactLocation(directory, store.source, Origin.DIRECTORY)
    model = found[ARTIFACT]
    assert (model.directory, model.origin, model.commit) == (place, Origin.DOWNLOAD, place.name)
    assert model.skipped[1] == f"volume: it does not have {NAME}"
    assert found[TOKENIZER].directory == place
    assert_same_content(model, store.source)
    # The library didn't request the hub's list of coding agents.
    assert all(NAME in path for _, path, _ in store.hub.requests)


def test_the_reason_of_a_failure_is_passed_between_the_processes(store: HubAndVolume) -> None:
    artifact = Artifact(NAME, "v9", setting="EMBEDDING_MODEL_NAME")
    expected = store.obtain_error(artifact)
    with start_fetcher(store, artifact) as fetcher, pytest.raises(ModelUnavailable) as raised:
        fetcher.wait_for_locations()
    why = raised.value
    assert why.reason is Reason.REVISION_MISSING
    assert (why.problem, why.remedy) == (expected.problem, expected.remedy)


@pytest.mark.parametrize(
    ("number", "message"),
    [(signal.SIGKILL, "was killed before it was complete"), (signal.SIGTERM, "ended before it")],
)
def test_a_download_that_is_killed_is_reported(
    store: HubAndVolume, number: int, message: str
) -> None:
    store.hub.stalled_paths = {WEIGHTS}
    with start_fetcher(store) as fetcher:
        os.kill(wait_for_owner(store), number)
        with pytest.raises(StartFailed, match=message):
            fetcher.wait_for_locations()
    # A killed process can't release its lease.
    assert is_released(store) is (number == signal.SIGTERM)


def test_stopping_a_download_does_not_wait_for_a_hub_that_hangs(
    store: HubAndVolume,
) -> None:
    store.hub.hangs = True
    with start_fetcher(store) as fetcher:
        os.kill(wait_for_owner(store, lambda: store.hub.requests), signal.SIGTERM)
        # This isn't the error for a hub that doesn't respond.
        with pytest.raises(StartFailed, match="ended before it was complete"):
            fetcher.wait_for_locations()
    assert not [*store.folder.glob(".worker/lease-*")]


def test_closing_the_fetcher_stops_the_download(store: HubAndVolume) -> None:
    store.hub.stalled_paths = {WEIGHTS}
    with start_fetcher(store) as one, start_fetcher(store, Artifact("org/none")):
        pid = wait_for_owner(store)
        one.close()
        assert not psutil.pid_exists(pid)
        assert is_released(store)


def test_a_warning_is_logged_only_for_a_cache_on_the_containers_own_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = tmp_path.stat().st_dev == Path("/").stat().st_dev
    warn_if_cache_not_shared(tmp_path / "not" / "there" / "yet")
    assert ("each worker downloads the model itself" in caplog.text) is own
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == Path("/").stat().st_dev:
        pytest.skip("there is no other disk here")
    caplog.clear()
    warn_if_cache_not_shared(shared / "not" / "there")
    assert not caplog.text
