"""Single files over bad connections: continued, checked, and linked into the snapshot."""

import shutil
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from support.hub.caches import (
    NAME,
    WANTED,
    WEIGHTS,
    On,
    hub_and_volume,
    paths,
    safetensors,
    same,
)
from support.hub.server import MEMBER, blob

from worker.store import File, NotFound, Reason, resolve
from worker.store.download import transfer
from worker.store.download.partial import Partial, Stopped

SIZE = len(safetensors())


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[On]:
    with hub_and_volume(tmp_path, monkeypatch) as both:
        yield both


def partial(on: On, content: bytes, name: str = WEIGHTS) -> Path:
    """Create the partial file of an earlier download."""
    path = on.folder / "blobs" / f"{blob(on.source / name)}.partial"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def sent(on: On, name: str = WEIGHTS) -> list[tuple[int, int]]:
    return [(part.start, part.end) for part in on.hub.sent if part.path == name]


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.json"])
def test_what_was_begun_is_continued(on: On, name: str) -> None:
    whole = (on.source / name).read_bytes()
    half = len(whole) // 2
    left = partial(on, whole[:half], name)
    same(on.obtain(), on.source)
    assert sent(on, name) == [(half, len(whole))]
    assert not left.exists()


def test_what_only_lacks_its_name_is_not_asked_for(on: On) -> None:
    partial(on, safetensors())
    same(on.obtain(), on.source)
    assert sent(on) == []


def test_a_file_of_nothing_is_none_the_less_a_file(on: On) -> None:
    (on.source / "merges.txt").touch()
    found = on.obtain()
    same(found, on.source)
    assert "merges.txt" in paths(found.place)


def test_more_than_the_file_has_is_begun_anew(on: On, caplog: pytest.LogCaptureFixture) -> None:
    partial(on, safetensors() + b"0")
    same(on.obtain(), on.source)
    assert sent(on) == [(0, SIZE)]
    assert "checksum" not in caplog.text


@pytest.mark.parametrize("length", [1, SIZE // 2, SIZE])
def test_what_was_begun_wrong_is_fetched_once_more_from_the_beginning(
    on: On, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    partial(on, b"\xff" * length)
    same(on.obtain(), on.source)
    rest = [(length, SIZE)] if length < SIZE else []
    assert sent(on) == [*rest, (0, SIZE)]
    assert f"{WEIGHTS}: its checksum is wrong: it is downloaded once more" in caplog.text


def test_a_file_that_the_hub_does_not_send_at_once_comes_in_ranges(
    on: On, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "RANGE_BYTES", 15_000)
    on.hub.longest = 15_000
    same(on.obtain(), on.source)
    assert sent(on) == [(0, 15_000), (15_000, 30_000), (30_000, SIZE)]


def test_after_a_cut_nothing_is_sent_again(on: On) -> None:
    on.hub.cut_after, on.hub.cuts = SIZE // 3, 2
    same(on.obtain(), on.source)
    ranges = sent(on)
    assert (ranges[0][0], ranges[-1][1], len(ranges)) == (0, SIZE, 3)
    # The last bytes before a cut may not have arrived.
    assert all(before[0] < after[0] <= before[1] for before, after in pairwise(ranges))


def test_a_line_that_is_always_cut_still_brings_it_all(on: On) -> None:
    on.hub.cut_after = SIZE // 8
    same(on.obtain(), on.source)
    assert len(sent(on)) >= 8


@pytest.mark.parametrize("length", [0, SIZE // 2])
def test_a_server_that_ignores_ranges_is_listened_to_from_the_beginning(
    on: On, length: int
) -> None:
    on.hub.ignores_ranges = True
    partial(on, safetensors()[:length])
    same(on.obtain(), on.source)
    assert sent(on) == [(0, SIZE)]


def test_a_server_that_ignores_ranges_and_always_cuts_is_given_up(on: On) -> None:
    on.hub.ignores_ranges, on.hub.cut_after = True, SIZE // 2
    assert on.refused().reason is Reason.UNREACHABLE
    assert len(sent(on)) < 20


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.json"])
def test_a_checksum_that_stays_wrong_is_reported_and_leaves_nothing_to_trust(
    on: On, name: str
) -> None:
    on.hub.wrong = {name}
    refused = on.refused()
    assert refused.reason is Reason.WRONG_CHECKSUM
    assert name in refused.problem
    assert len(sent(on, name)) == 2
    assert isinstance(resolve(WANTED, on.places), NotFound)
    left = [path.name for path in on.folder.glob("blobs/*")]
    assert not [path for path in left if path.startswith(blob(on.source / name))]
    assert not [*on.folder.glob(".worker/manifests/*.json")]
    on.hub.wrong = set()
    same(on.obtain(), on.source)


@pytest.mark.parametrize("status", [429, 503])
def test_files_are_asked_for_again_when_the_hub_fails(
    on: On, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = on.hub.repositories[NAME]
    find = repository.find

    def fail_after_listing(revision: str) -> Path:
        if revision == "main":
            on.hub.faults = [status] * 4
        return find(revision)

    monkeypatch.setattr(repository, "find", fail_after_listing)
    same(on.obtain(), on.source)
    assert on.hub.faults == []


def test_another_host_learns_no_token(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", MEMBER)
    on.hub.repositories[NAME].gated = on.hub.redirects = True
    partial(on, safetensors()[:1000])
    same(on.obtain(), on.source)
    assert sent(on) == [(1000, SIZE)]
    assert on.hub.tokens_elsewhere
    assert set(on.hub.tokens_elsewhere) == {None}


# Disks without links:


@pytest.fixture
def _no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, _: object) -> None:
        raise PermissionError(1, "no links here", str(path))

    monkeypatch.setattr(Path, "symlink_to", refuse)


@pytest.mark.usefixtures("_no_links")
def test_where_there_are_no_links_files_lie_in_the_snapshot(on: On) -> None:
    shutil.copy(on.source / "tokenizer.json", on.source / "added_tokens.json")
    found = on.obtain()
    same(found, on.source)
    assert paths(found.place) == paths(on.source)
    assert [*(on.folder / "blobs").iterdir()] == []
    assert on.obtain().place == found.place


@pytest.mark.usefixtures("_no_links")
@pytest.mark.parametrize("content", [b"", b"0" * SIZE])
def test_where_there_are_no_links_a_file_is_known_by_its_content(on: On, content: bytes) -> None:
    found = on.obtain()
    (found.place / WEIGHTS).write_bytes(content)
    (found.place / "config.json").unlink()
    on.hub.clear()
    same(on.obtain(), on.source)
    assert {part.path for part in on.hub.sent} == {WEIGHTS, "config.json"}


def test_a_link_to_something_else_is_replaced(on: On, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"0" * SIZE)
    link = on.folder / "snapshots" / on.obtain().place.name / WEIGHTS
    link.unlink()
    link.symlink_to(other)
    (link.parent / "config.json").unlink()
    on.hub.clear()
    same(on.obtain(), on.source)
    assert sent(on) == []
    assert other.exists()


def test_nothing_is_written_once_another_worker_does_it(tmp_path: Path) -> None:
    stop = threading.Event()
    with Partial(tmp_path / "part", File("a", 10, "0" * 40), stop) as partial:
        partial.write(b"12345")
        stop.set()
        with pytest.raises(Stopped):
            partial.write(b"67890")
    assert (tmp_path / "part").read_bytes() == b"12345"
