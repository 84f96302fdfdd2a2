"""What ends a download at once, also while a connection sends nothing: a failure, a lost lease.

That a process ends at once when it has to is tested in test_fetching.py.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from support.hub.caches import NAME, SHARDS, On, model, same
from support.hub.server import blob, paths
from support.processes.background import HUNG_S, wait_until

from worker.store import Reason, Unavailable, download
from worker.volume import lease

STALLED, OTHER = SHARDS
FAILS = "tokenizer.json"


@pytest.fixture
def on(on: On, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> On:
    """A hub that stops in the middle of a shard, and a client that waits for more for hours."""
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 10_000)
    source = model(tmp_path / "shards", SHARDS)
    on.hub.add(NAME, source)
    on.hub.stalled = {STALLED}
    return on._replace(source=source)


@pytest.fixture
def pool(on: On) -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor()
    yield pool
    # A download that didn't end waits for the hub, which ends after this.
    pool.shutdown(wait=False)


def stored(on: On, name: str) -> Path:
    """Return where a file's content lies once all of it is there."""
    return on.folder / "blobs" / blob(on.source / name)


def begun(on: On) -> int:
    """Return how many bytes of the stalled file are on the disk."""
    partial = stored(on, STALLED).with_suffix(".partial")
    return partial.stat().st_size if partial.exists() else 0


def send_the_rest(on: On, before: int) -> None:
    """Let a thread that was left behind get the rest, which it must not write."""
    on.hub.stalled, on.hub.wrong = set(), set()
    wait_until(lambda: on.hub.transferred(NAME, STALLED) == (on.source / STALLED).stat().st_size)
    assert begun(on) == before
    on.hub.clear()


def full(_: int) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"wrong": {FAILS}}, Reason.WRONG_CHECKSUM),
        ({"statuses": {FAILS: 404}}, Reason.MISSING),
        ({}, Reason.NO_SPACE),
    ],
)
def test_the_failure_of_a_file_ends_another_one_that_is_stalled(
    on: On,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
    fault: dict[str, Any],
    reason: Reason,
) -> None:
    vars(on.hub).update(fault)
    with monkeypatch.context() as patched:
        if reason is Reason.NO_SPACE:
            patched.setattr(os, "fsync", full)
        why = pool.submit(on.obtain).exception(HUNG_S)
    assert isinstance(why, Unavailable)
    assert why.reason is reason
    assert not [*(on.folder / ".worker").glob("lease-*")]


def test_after_a_failure_finished_files_are_not_sent_again_and_stalled_ones_continued(
    on: On, pool: ThreadPoolExecutor
) -> None:
    on.hub.stalled, on.hub.wrong = {STALLED, FAILS}, {FAILS}
    first = pool.submit(on.obtain)
    wait_until(lambda: all(stored(on, name).exists() for name in (OTHER, "config.json")))
    wait_until(lambda: begun(on))
    on.hub.stalled = {STALLED}
    assert isinstance(first.exception(HUNG_S), Unavailable)
    had = begun(on)
    send_the_rest(on, had)
    same(pool.submit(on.obtain).result(HUNG_S), on.source)
    assert {sent.path for sent in on.hub.sent} == {STALLED, FAILS}
    assert [sent.start for sent in on.hub.sent if sent.path == STALLED] == [had]


def test_a_lost_lease_ends_a_download_that_is_stalled(
    on: On,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(lease, "BEAT_S", 0.05)
    monkeypatch.setattr(download, "LOOK_S", 0.05)
    overtaken = pool.submit(on.obtain)
    others = {*paths(on.source)} - {STALLED}
    wait_until(lambda: begun(on) and all(stored(on, name).exists() for name in others))
    leases = on.folder / ".worker"
    (leases / "lease-2").touch()
    other = lease.Lease(leases / "lease-2", 2, lambda: (0, 0))
    (leases / "lease-1").unlink()
    wait_until(lambda: f"{NAME}: another worker downloads it" in caplog.text)
    had = begun(on)
    send_the_rest(on, had)
    other.release()
    same(overtaken.result(HUNG_S), on.source)
    assert [sent.start for sent in on.hub.sent if sent.path == STALLED] == [had]
    assert OTHER not in {sent.path for sent in on.hub.sent}
