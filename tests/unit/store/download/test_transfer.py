"""Transfers of files over bad connections: resuming, checksums and links; and what stops them.

A failure or a lost lease stops a transfer immediately, even on a silent connection.
test_fetcher.py tests that the process stops immediately.
"""

import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, constants
from support.hub.caches import (
    ARTIFACT,
    NAME,
    SHARDS,
    WEIGHTS,
    HubAndVolume,
    assert_same_content,
    make_model,
    safetensors,
)
from support.hub.server import MEMBER, blob_id, relative_paths
from support.processes.background import HUNG_S, wait_until

from worker.store import (
    File,
    ModelUnavailable,
    Reason,
    UnlocatedArtifact,
    download,
    resolve_on_disk,
)
from worker.store.download import transfer
from worker.store.download.transfer import CommitDownloader, DownloadStopped, PartialFile
from worker.store.refusals import WrongChecksumError
from worker.volume import lease

SIZE = len(safetensors())
HALF = SIZE // 2


def create_partial(store: HubAndVolume, content: bytes, name: str = WEIGHTS) -> Path:
    """Create the partial file of an earlier download."""
    path = store.folder / "blobs" / f"{blob_id(store.source / name)}.partial"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def sent_ranges(store: HubAndVolume, name: str = WEIGHTS) -> list[tuple[int, int]]:
    return [(part.start, part.end) for part in store.hub.sent_ranges if part.path == name]


WRONG = "its checksum is wrong: downloading it again"


@pytest.mark.parametrize(
    ("content", "ranges", "is_wrong"),
    [
        (safetensors()[:HALF], [(HALF, SIZE)], False),
        # Only the name of the file is still missing.
        (safetensors(), [], False),
        # A partial file that is too large is downloaded again.
        (safetensors() + b"0", [(0, SIZE)], False),
        (b"\xff" * HALF, [(HALF, SIZE), (0, SIZE)], True),
        (b"\xff" * SIZE, [(0, SIZE)], True),
    ],
    ids=["half", "whole", "more", "half of it wrong", "all wrong"],
)
def test_a_partial_file_is_resumed_or_downloaded_again_if_its_checksum_is_wrong(
    store: HubAndVolume,
    content: bytes,
    ranges: list[tuple[int, int]],
    is_wrong: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    partial = create_partial(store, content)
    assert_same_content(store.obtain(), store.source)
    assert sent_ranges(store) == ranges
    assert (f"{WEIGHTS}: {WRONG}" in caplog.text) is is_wrong
    assert not partial.exists()


def test_small_files_are_resumed_and_empty_files_are_created(store: HubAndVolume) -> None:
    whole = (store.source / "tokenizer.json").read_bytes()
    create_partial(store, whole[:5], "tokenizer.json")
    (store.source / "merges.txt").touch()
    found = store.obtain()
    assert_same_content(found, store.source)
    assert sent_ranges(store, "tokenizer.json") == [(5, len(whole))]
    assert "merges.txt" in relative_paths(found.directory)


def test_a_large_file_is_requested_in_ranges(
    store: HubAndVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "RANGE_BYTES", 15_000)
    store.hub.max_range = 15_000
    assert_same_content(store.obtain(), store.source)
    assert sent_ranges(store) == [(0, 15_000), (15_000, 30_000), (30_000, SIZE)]


@pytest.mark.parametrize(("cut_after", "cuts"), [(SIZE // 3, 2), (SIZE // 8, None)])
def test_a_transfer_is_resumed_after_a_broken_connection(
    store: HubAndVolume, cut_after: int, cuts: int | None
) -> None:
    store.hub.cut_after, store.hub.cuts = cut_after, cuts
    assert_same_content(store.obtain(), store.source)
    ranges = sent_ranges(store)
    assert (ranges[0][0], ranges[-1][1]) == (0, SIZE)
    assert len(ranges) == 3 if cuts else len(ranges) >= 8
    # The last bytes before a cut may not have arrived.
    assert all(before[0] < after[0] <= before[1] for before, after in pairwise(ranges))


@pytest.mark.parametrize("length", [0, HALF])
def test_a_file_is_read_from_the_beginning_if_the_server_ignores_ranges(
    store: HubAndVolume, length: int
) -> None:
    store.hub.ignores_ranges = True
    create_partial(store, safetensors()[:length])
    assert_same_content(store.obtain(), store.source)
    assert sent_ranges(store) == [(0, SIZE)]


def test_a_server_that_ignores_ranges_and_always_cuts_is_reported_as_unreachable(
    store: HubAndVolume,
) -> None:
    store.hub.ignores_ranges, store.hub.cut_after = True, HALF
    assert store.obtain_error().reason is Reason.UNREACHABLE
    assert len(sent_ranges(store)) < 20


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.json"])
def test_a_checksum_that_stays_wrong_is_reported_and_no_file_is_trusted(
    store: HubAndVolume, name: str
) -> None:
    store.hub.corrupt_paths = {name}
    refused = store.obtain_error()
    assert (refused.reason, name in refused.problem) == (Reason.WRONG_CHECKSUM, True)
    assert len(sent_ranges(store, name)) == 2
    assert isinstance(resolve_on_disk(ARTIFACT, store.places), UnlocatedArtifact)
    patterns = ("blobs/{}*", ".worker/manifests/*.json", ".worker/lease-*")
    assert not [
        path
        for one in patterns
        for path in store.folder.glob(one.format(blob_id(store.source / name)))
    ]
    store.hub.corrupt_paths = set()
    assert_same_content(store.obtain(), store.source)


def test_requests_for_files_are_retried_if_the_hub_fails(
    store: HubAndVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = store.hub.repositories[NAME]
    find = repository.find

    def fail_after_listing(revision: str) -> Path:
        if revision == "main":
            store.hub.next_statuses = [429, 503, 503, 429]
        return find(revision)

    monkeypatch.setattr(repository, "find", fail_after_listing)
    assert_same_content(store.obtain(), store.source)
    assert store.hub.next_statuses == []


def test_no_token_is_sent_to_another_host(
    store: HubAndVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", MEMBER)
    store.hub.repositories[NAME].gated = store.hub.redirects_large_files = True
    create_partial(store, safetensors()[:1000])
    assert_same_content(store.obtain(), store.source)
    assert sent_ranges(store) == [(1000, SIZE)]
    assert store.hub.tokens_on_other_host
    assert set(store.hub.tokens_on_other_host) == {None}


@pytest.fixture
def _forbid_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, _: object) -> None:
        raise PermissionError(1, "no links here", str(path))

    monkeypatch.setattr(Path, "symlink_to", refuse)


@pytest.mark.usefixtures("_forbid_links")
@pytest.mark.parametrize("content", [b"", b"0" * SIZE])
def test_files_are_recognized_by_their_content_without_links(
    store: HubAndVolume, content: bytes
) -> None:
    shutil.copy(store.source / "tokenizer.json", store.source / "added_tokens.json")
    found = store.obtain()
    assert_same_content(found, store.source)
    assert relative_paths(found.directory) == relative_paths(store.source)
    assert [*(store.folder / "blobs").iterdir()] == []
    assert store.obtain().directory == found.directory
    (found.directory / WEIGHTS).write_bytes(content)
    (found.directory / "config.json").unlink()
    store.hub.clear()
    assert_same_content(store.obtain(), store.source)
    assert {part.path for part in store.hub.sent_ranges} == {WEIGHTS, "config.json"}


def test_a_stopped_download_writes_creates_and_removes_nothing(tmp_path: Path) -> None:
    file, stop, part = File("a", 10, "0" * 40), threading.Event(), tmp_path / "blobs" / "0.partial"
    part.parent.mkdir()
    with PartialFile(part, file, stop) as opened:
        opened.write(b"12345")
        with pytest.raises(WrongChecksumError, match="longer than announced"):
            opened.write(b"678901")
        stop.set()
        with pytest.raises(DownloadStopped):
            opened.write(b"67890")
        with pytest.raises(DownloadStopped):
            opened.truncate(0)
    with pytest.raises(DownloadStopped):
        PartialFile(tmp_path / "other", file, stop)
    CommitDownloader(HfApi(), NAME, "0" * 40, tmp_path, stop).remove_partials()
    assert part.read_bytes() == b"12345"
    assert not (tmp_path / "other").exists()


def test_a_file_that_another_worker_has_just_completed_is_used(
    store: HubAndVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.replace

    def replace_twice(path: Path, target: Path) -> Path:
        if path.suffix == ".partial":
            rename(path, target)
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", replace_twice)
    assert_same_content(store.obtain(), store.source)


# What stops a transfer:

STALLED, OTHER = SHARDS
FAILS = "tokenizer.json"


@pytest.fixture
def stalling(store: HubAndVolume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubAndVolume:
    """A hub that stalls in the middle of a shard, and a client that waits for hours."""
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 10_000)
    source = make_model(tmp_path / "shards", SHARDS)
    store.hub.add(NAME, source)
    store.hub.stalled_paths = {STALLED}
    return store._replace(source=source)


@pytest.fixture
def pool(stalling: HubAndVolume) -> Iterator[ThreadPoolExecutor]:
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
    stalling: HubAndVolume,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
    fault: dict[str, Any],
    reason: Reason,
) -> None:
    vars(stalling.hub).update(fault)
    with monkeypatch.context() as patched:
        if reason is Reason.NO_SPACE:
            patched.setattr(os, "fsync", raise_disk_full)
        why = pool.submit(stalling.obtain).exception(HUNG_S)
    assert isinstance(why, ModelUnavailable)
    assert why.reason is reason
    assert not [*(stalling.folder / ".worker").glob("lease-*")]


def test_after_a_failure_finished_files_are_not_sent_again_and_stalled_ones_are_resumed(
    stalling: HubAndVolume, pool: ThreadPoolExecutor
) -> None:
    stalling.hub.stalled_paths, stalling.hub.corrupt_paths = {STALLED, FAILS}, {FAILS}
    first = pool.submit(stalling.obtain)
    wait_until(lambda: all(blob_path(stalling, name).exists() for name in (OTHER, "config.json")))
    wait_until(lambda: partial_size(stalling))
    stalling.hub.stalled_paths = {STALLED}
    assert isinstance(first.exception(HUNG_S), ModelUnavailable)
    received = partial_size(stalling)
    send_the_rest(stalling, received)
    assert_same_content(pool.submit(stalling.obtain).result(HUNG_S), stalling.source)
    assert {sent.path for sent in stalling.hub.sent_ranges} == {STALLED, FAILS}
    assert [sent.start for sent in stalling.hub.sent_ranges if sent.path == STALLED] == [received]


def test_a_lost_lease_stops_a_stalled_download(
    stalling: HubAndVolume,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(lease, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(download, "POLL_S", 0.05)
    result = pool.submit(stalling.obtain)
    others = {*relative_paths(stalling.source)} - {STALLED}
    wait_until(
        lambda: (
            partial_size(stalling) and all(blob_path(stalling, name).exists() for name in others)
        )
    )
    leases = stalling.folder / ".worker"
    (leases / "lease-2").touch()
    other = lease.Lease(leases / "lease-2", 2, lambda: (0, 0))
    (leases / "lease-1").unlink()
    wait_until(lambda: f"{NAME}: another worker is downloading it" in caplog.text)
    received = partial_size(stalling)
    send_the_rest(stalling, received)
    other.release()
    assert_same_content(result.result(HUNG_S), stalling.source)
    assert [sent.start for sent in stalling.hub.sent_ranges if sent.path == STALLED] == [received]
    assert OTHER not in {sent.path for sent in stalling.hub.sent_ranges}
