"""Events that stop a download immediately, even on a silent connection: a failure, a lost lease.

test_fetcher.py tests that the process stops immediately.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from support.hub.caches import NAME, SHARDS, HubAndVolume, assert_same_content, make_model
from support.hub.server import blob_id, relative_paths
from support.processes.background import HUNG_S, wait_until

from worker.store import ModelUnavailable, Reason, download
from worker.volume import lease

STALLED, OTHER = SHARDS
FAILS = "tokenizer.json"


@pytest.fixture
def store(store: HubAndVolume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubAndVolume:
    """A hub that stalls in the middle of a shard, and a client that waits for hours."""
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 10_000)
    source = make_model(tmp_path / "shards", SHARDS)
    store.hub.add(NAME, source)
    store.hub.stalled_paths = {STALLED}
    return store._replace(source=source)


@pytest.fixture
def pool(store: HubAndVolume) -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor()
    yield pool
    # A download that didn't stop waits for the hub, which stops after this fixture.
    pool.shutdown(wait=False)


def blob_path(store: HubAndVolume, name: str) -> Path:
    """Return the path of a file's complete content."""
    return store.folder / "blobs" / blob_id(store.source / name)


def partial_size(store: HubAndVolume) -> int:
    """Return the number of bytes of the stalled file that are on the disk."""
    partial = blob_path(store, STALLED).with_suffix(".partial")
    return partial.stat().st_size if partial.exists() else 0


def send_the_rest(store: HubAndVolume, before: int) -> None:
    """Let an abandoned thread receive the rest of the file, which it must not write."""
    store.hub.stalled_paths, store.hub.corrupt_paths = set(), set()
    wait_until(
        lambda: store.hub.bytes_sent(NAME, STALLED) == (store.source / STALLED).stat().st_size
    )
    assert partial_size(store) == before
    store.hub.clear()


def raise_disk_full(_: int) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"corrupt_paths": {FAILS}}, Reason.WRONG_CHECKSUM),
        ({"statuses": {FAILS: 404}}, Reason.MISSING),
        ({}, Reason.NO_SPACE),
    ],
)
def test_the_failure_of_one_file_stops_a_stalled_one(
    store: HubAndVolume,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
    fault: dict[str, Any],
    reason: Reason,
) -> None:
    vars(store.hub).update(fault)
    with monkeypatch.context() as patched:
        if reason is Reason.NO_SPACE:
            patched.setattr(os, "fsync", raise_disk_full)
        why = pool.submit(store.obtain).exception(HUNG_S)
    assert isinstance(why, ModelUnavailable)
    assert why.reason is reason
    assert not [*(store.folder / ".worker").glob("lease-*")]


def test_after_a_failure_finished_files_are_not_sent_again_and_stalled_ones_are_resumed(
    store: HubAndVolume, pool: ThreadPoolExecutor
) -> None:
    store.hub.stalled_paths, store.hub.corrupt_paths = {STALLED, FAILS}, {FAILS}
    first = pool.submit(store.obtain)
    wait_until(lambda: all(blob_path(store, name).exists() for name in (OTHER, "config.json")))
    wait_until(lambda: partial_size(store))
    store.hub.stalled_paths = {STALLED}
    assert isinstance(first.exception(HUNG_S), ModelUnavailable)
    received = partial_size(store)
    send_the_rest(store, received)
    assert_same_content(pool.submit(store.obtain).result(HUNG_S), store.source)
    assert {sent.path for sent in store.hub.sent_ranges} == {STALLED, FAILS}
    assert [sent.start for sent in store.hub.sent_ranges if sent.path == STALLED] == [received]


def test_a_lost_lease_stops_a_stalled_download(
    store: HubAndVolume,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(lease, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(download, "POLL_S", 0.05)
    result = pool.submit(store.obtain)
    others = {*relative_paths(store.source)} - {STALLED}
    wait_until(
        lambda: partial_size(store) and all(blob_path(store, name).exists() for name in others)
    )
    leases = store.folder / ".worker"
    (leases / "lease-2").touch()
    other = lease.Lease(leases / "lease-2", 2, lambda: (0, 0))
    (leases / "lease-1").unlink()
    wait_until(lambda: f"{NAME}: another worker is downloading it" in caplog.text)
    received = partial_size(store)
    send_the_rest(store, received)
    other.release()
    assert_same_content(result.result(HUNG_S), store.source)
    assert [sent.start for sent in store.hub.sent_ranges if sent.path == STALLED] == [received]
    assert OTHER not in {sent.path for sent in store.hub.sent_ranges}
