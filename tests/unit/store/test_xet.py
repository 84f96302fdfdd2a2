"""Large files through the hub's own protocol for them, which may fail: then they come over HTTP.

No storage for it is to be had here: a hub announces one, and what it would bring is put there.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from support.hub.caches import NAME, SHARDS, WEIGHTS, On, hub_and_volume, model, safetensors, same
from support.hub.server import blob, commit

from worker.store import File, download
from worker.store.download import transfer
from worker.store.download.growing import Stopped
from worker.store.download.transfer import Transfer
from worker.store.refusals import WrongChecksumError

CONTENT = safetensors()


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[On]:
    with hub_and_volume(tmp_path, monkeypatch) as both:
        # It answers, but has none of these files.
        both.hub.xet = both.hub.endpoint
        yield both


Get = Callable[[Callable[[Path], object]], None]


@pytest.fixture
def stop() -> threading.Event:
    return threading.Event()


@pytest.fixture
def get(on: On, stop: threading.Event, monkeypatch: pytest.MonkeyPatch) -> Get:
    """Get the weights, with something else in the place of the protocol."""

    def get_by(bring: Callable[[Path], object]) -> None:
        monkeypatch.setattr(transfer, "xet_get", lambda **given: bring(given["incomplete_path"]))
        file = File(WEIGHTS, len(CONTENT), blob(on.source / WEIGHTS))
        api = HfApi(endpoint=on.hub.endpoint)
        Transfer(api, NAME, commit(on.source), on.folder, stop).get(file)

    return get_by


def reconstructed(on: On) -> set[str]:
    """Name the contents that were asked for."""
    start = "/v1/reconstructions/"
    return {path for _, path, _ in on.hub.requests if path.startswith(start)}


def test_where_it_fails_the_file_comes_over_http(on: On, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    same(on.obtain(), on.source)
    assert f"{WEIGHTS}: not through Xet (" in caplog.text
    assert on.hub.transferred(NAME, WEIGHTS) == len(CONTENT)
    assert len(reconstructed(on)) == 1


def test_where_it_has_failed_it_is_not_tried_for_other_files(
    on: On, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "AT_ONCE", 1)
    source = model(tmp_path / "shards", SHARDS)
    on.hub.add(NAME, source)
    same(on.obtain(), source)
    assert len(reconstructed(on)) == 1


def test_what_was_begun_over_http_is_continued_so(on: On) -> None:
    partial = on.folder / "blobs" / f"{blob(on.source / WEIGHTS)}.partial"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(CONTENT[:1000])
    same(on.obtain(), on.source)
    assert on.hub.transferred(NAME, WEIGHTS) == len(CONTENT) - 1000
    assert reconstructed(on) == set()


def test_small_files_come_over_http(on: On) -> None:
    on.obtain()
    heads = [path for method, path, _ in on.hub.requests if method == "HEAD"]
    assert len(heads) == 1
    assert heads[0].endswith(WEIGHTS)


def test_what_it_brings_is_put_into_its_place(on: On, get: Get) -> None:
    left = on.folder / "blobs" / f"{blob(on.source / WEIGHTS)}.of-a-dead-owner.xet.partial"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"0" * len(CONTENT))
    get(lambda path: path.write_bytes(CONTENT))
    same_name = on.folder / "snapshots" / commit(on.source) / WEIGHTS
    assert same_name.read_bytes() == CONTENT
    assert on.hub.sent == []
    assert [path.name for path in left.parent.iterdir()] == [blob(on.source / WEIGHTS)]


def test_what_it_brings_short_is_wrong(on: On, get: Get) -> None:
    with pytest.raises(WrongChecksumError):
        get(lambda path: path.write_bytes(CONTENT[1:]))
    assert [*(on.folder / "blobs").iterdir()] == []


def test_what_it_brings_after_another_worker_has_taken_over_stays_without_a_name(
    on: On, get: Get, stop: threading.Event
) -> None:
    def bring(path: Path) -> None:
        path.write_bytes(CONTENT)
        stop.set()

    with pytest.raises(Stopped):
        get(bring)
    assert not (on.folder / "blobs" / blob(on.source / WEIGHTS)).exists()
