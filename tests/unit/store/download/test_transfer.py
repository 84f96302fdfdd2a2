"""Single files over bad connections: continued, checked, and linked into the snapshot."""

import shutil
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from support.hub.caches import NAME, WANTED, WEIGHTS, On, safetensors, same
from support.hub.server import MEMBER, blob, paths

from worker.store import File, NotFound, Reason, resolve
from worker.store.download import transfer
from worker.store.download.transfer import Partial, Stopped, Transfer
from worker.store.refusals import WrongChecksumError

SIZE = len(safetensors())
HALF = SIZE // 2


def partial(on: On, content: bytes, name: str = WEIGHTS) -> Path:
    """Create the partial file of an earlier download."""
    path = on.folder / "blobs" / f"{blob(on.source / name)}.partial"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def sent(on: On, name: str = WEIGHTS) -> list[tuple[int, int]]:
    return [(part.start, part.end) for part in on.hub.sent if part.path == name]


WRONG = "its checksum is wrong: it is downloaded once more"


@pytest.mark.parametrize(
    ("there", "ranges", "is_wrong"),
    [
        (safetensors()[:HALF], [(HALF, SIZE)], False),
        # It lacks only its name.
        (safetensors(), [], False),
        # More than the file has is begun anew.
        (safetensors() + b"0", [(0, SIZE)], False),
        (b"\xff" * HALF, [(HALF, SIZE), (0, SIZE)], True),
        (b"\xff" * SIZE, [(0, SIZE)], True),
    ],
    ids=["half", "whole", "more", "half of it wrong", "all wrong"],
)
def test_what_was_begun_is_continued_and_once_more_begun_if_it_is_wrong(
    on: On,
    there: bytes,
    ranges: list[tuple[int, int]],
    is_wrong: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    left = partial(on, there)
    same(on.obtain(), on.source)
    assert sent(on) == ranges
    assert (f"{WEIGHTS}: {WRONG}" in caplog.text) is is_wrong
    assert not left.exists()


def test_small_files_are_continued_too_and_one_of_nothing_is_one(on: On) -> None:
    whole = (on.source / "tokenizer.json").read_bytes()
    partial(on, whole[:5], "tokenizer.json")
    (on.source / "merges.txt").touch()
    found = on.obtain()
    same(found, on.source)
    assert sent(on, "tokenizer.json") == [(5, len(whole))]
    assert "merges.txt" in paths(found.place)


def test_a_file_too_large_at_once_comes_in_ranges(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "RANGE_BYTES", 15_000)
    on.hub.longest = 15_000
    same(on.obtain(), on.source)
    assert sent(on) == [(0, 15_000), (15_000, 30_000), (30_000, SIZE)]


@pytest.mark.parametrize(("cut_after", "cuts"), [(SIZE // 3, 2), (SIZE // 8, None)])
def test_after_a_cut_nothing_is_sent_again(on: On, cut_after: int, cuts: int | None) -> None:
    on.hub.cut_after, on.hub.cuts = cut_after, cuts
    same(on.obtain(), on.source)
    ranges = sent(on)
    assert (ranges[0][0], ranges[-1][1]) == (0, SIZE)
    assert len(ranges) == 3 if cuts else len(ranges) >= 8
    # The last bytes before a cut may not have arrived.
    assert all(before[0] < after[0] <= before[1] for before, after in pairwise(ranges))


@pytest.mark.parametrize("length", [0, HALF])
def test_a_server_that_ignores_ranges_is_heard_from_the_beginning(on: On, length: int) -> None:
    on.hub.ignores_ranges = True
    partial(on, safetensors()[:length])
    same(on.obtain(), on.source)
    assert sent(on) == [(0, SIZE)]


def test_a_server_that_ignores_ranges_and_always_cuts_is_given_up(on: On) -> None:
    on.hub.ignores_ranges, on.hub.cut_after = True, HALF
    assert on.refused().reason is Reason.UNREACHABLE
    assert len(sent(on)) < 20


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.json"])
def test_a_checksum_that_stays_wrong_is_reported_and_nothing_trusted(on: On, name: str) -> None:
    on.hub.wrong = {name}
    refused = on.refused()
    assert (refused.reason, name in refused.problem) == (Reason.WRONG_CHECKSUM, True)
    assert len(sent(on, name)) == 2
    assert isinstance(resolve(WANTED, on.places), NotFound)
    left = ("blobs/{}*", ".worker/manifests/*.json", ".worker/lease-*")
    assert not [path for one in left for path in on.folder.glob(one.format(blob(on.source / name)))]
    on.hub.wrong = set()
    same(on.obtain(), on.source)


def test_files_are_asked_for_again_if_a_hub_fails(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = on.hub.repositories[NAME]
    find = repository.find

    def fail_after_listing(revision: str) -> Path:
        if revision == "main":
            on.hub.faults = [429, 503, 503, 429]
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


@pytest.fixture
def _no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, _: object) -> None:
        raise PermissionError(1, "no links here", str(path))

    monkeypatch.setattr(Path, "symlink_to", refuse)


@pytest.mark.usefixtures("_no_links")
@pytest.mark.parametrize("content", [b"", b"0" * SIZE])
def test_where_there_are_no_links_files_are_known_by_their_content(on: On, content: bytes) -> None:
    shutil.copy(on.source / "tokenizer.json", on.source / "added_tokens.json")
    found = on.obtain()
    same(found, on.source)
    assert paths(found.place) == paths(on.source)
    assert [*(on.folder / "blobs").iterdir()] == []
    assert on.obtain().place == found.place
    (found.place / WEIGHTS).write_bytes(content)
    (found.place / "config.json").unlink()
    on.hub.clear()
    same(on.obtain(), on.source)
    assert {part.path for part in on.hub.sent} == {WEIGHTS, "config.json"}


def test_who_was_overtaken_writes_makes_and_removes_nothing(tmp_path: Path) -> None:
    file, stop, part = File("a", 10, "0" * 40), threading.Event(), tmp_path / "blobs" / "0.partial"
    part.parent.mkdir()
    with Partial(part, file, stop) as opened:
        opened.write(b"12345")
        with pytest.raises(WrongChecksumError, match="longer than announced"):
            opened.write(b"678901")
        stop.set()
        with pytest.raises(Stopped):
            opened.write(b"67890")
        with pytest.raises(Stopped):
            opened.truncate(0)
    with pytest.raises(Stopped):
        Partial(tmp_path / "other", file, stop)
    Transfer(HfApi(), NAME, "0" * 40, tmp_path, stop).tidy()
    assert part.read_bytes() == b"12345"
    assert not (tmp_path / "other").exists()


def test_who_is_overtaken_last_finds_the_file(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.replace

    def overtaken(path: Path, target: Path) -> Path:
        if path.suffix == ".partial":
            rename(path, target)
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", overtaken)
    same(on.obtain(), on.source)
