"""Ids, pages of lists, and signed URLs."""

import random
import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from worker.errors import NoSuchObject
from worker.volume import Volume, ids
from worker.volume.links import VALID_S, SignedLinks
from worker.volume.pages import IndexEntry, TimeIndex, paginate, read_page


def test_every_new_id_is_unique_and_has_24_letters_and_digits() -> None:
    new_ids = {ids.new_id("file-") for _ in range(1000)}
    assert len(new_ids) == 1000
    assert all(re.fullmatch(r"file-[a-z0-9]{24}", id) and ids.is_id("file-", id) for id in new_ids)


def test_a_derived_id_depends_only_on_its_origin() -> None:
    derived = ids.derive_id("batch_", "job-1", "out")
    assert derived == ids.derive_id("batch_", "job-1", "out")
    others: list[list[str]] = [["job-1out"], ["job-1"], ["out"], [], ["ä/\ud83d", ""]]
    new_ids = {derived, *(ids.derive_id("batch_", *origin) for origin in others)}
    assert len(new_ids) == 6
    assert all(ids.is_id("batch_", id) for id in new_ids)


A = "a" * 24


@pytest.mark.parametrize(
    "text",
    [
        *("", "file-", f"file-{A[1:]}", f"file-{A}a", f"batch_{A}", f"file-{A.upper()}"),
        *("file-" + "/" * 24, f"file-../{A[3:]}", f"file-{A}\n", "file-" + "٣" * 24, f" file-{A}"),
    ],
)
def test_a_string_of_another_form_is_not_an_id(text: str) -> None:
    assert not ids.is_id("file-", text)


NOW = 1_800_000_000


@dataclass(frozen=True)
class Item:
    """An item of a list."""

    id: str
    created_at: int


# Two items were created in the same second.
ITEMS = [Item("b", 2), Item("d", 3), Item("a", 1), Item("c", 2)]


@pytest.mark.parametrize(("order", "sorted_ids"), [("desc", "dcba"), ("asc", "abcd")])
@pytest.mark.parametrize("limit", [1, 3, 4, 5])
def test_pages_have_every_item_once_in_order(order: str, sorted_ids: str, limit: int) -> None:
    seen_ids: list[str] = []
    after, more = None, True
    while more:
        page = paginate(ITEMS, after=after, limit=limit, order=order)
        assert len(page.data) <= limit
        seen_ids += [item.id for item in page.data]
        after, more = seen_ids[-1], page.has_more
    assert "".join(seen_ids) == sorted_ids


def test_a_page_after_an_unknown_item_is_refused() -> None:
    with pytest.raises(NoSuchObject, match="after: nothing") as exc_info:
        paginate(ITEMS, after="z")
    assert exc_info.value.param == "after"


def random_entries(count: int, seconds: int) -> set[IndexEntry]:
    """Return entries that were created within a number of seconds, some of them together."""
    draw = random.Random(count)
    return {
        IndexEntry(
            NOW - draw.randrange(seconds),
            ids.add_volume_id(ids.new_id("file-"), draw.choice([None, "euvolume01"])),
            draw.choice(["", "batch"]),
            draw.choice([0, NOW]),
        )
        for _ in range(count)
    }


@pytest.mark.parametrize("spans", [(), (1_000,), (1_000, 1)])
@pytest.mark.parametrize("seconds", [1, 999, 9_999, 10**6])
@pytest.mark.parametrize(("order", "is_reverse"), [("desc", True), ("asc", False)])
def test_an_index_has_all_entries_in_order_from_any_of_them(
    tmp_path: Path, spans: tuple[int, ...], seconds: int, order: str, is_reverse: bool
) -> None:
    index, entries = TimeIndex(tmp_path / "worker" / "index", spans), random_entries(200, seconds)
    assert [*index.entries()] == []
    for entry in entries:
        index.add(entry)
    in_order = sorted(entries, reverse=is_reverse)
    assert [*index.entries(order=order)] == in_order
    for place in (0, 1, 99, 199):
        after = [*index.entries(order=order, after=in_order[place])]
        assert after == in_order[place + 1 :]
    # A removed entry is still a position.
    index.remove(in_order[50])
    assert [*index.entries(order=order, after=in_order[50])] == in_order[51:]


def test_a_repaired_index_has_the_existing_objects_and_recent_entries(tmp_path: Path) -> None:
    index = TimeIndex(tmp_path)
    gone, lost, recent, kept = (
        IndexEntry(created_at, id)
        for created_at, id in ((1_000, "a"), (2_000, "b"), (int(time.time()), "c"), (3_000, "d"))
    )
    for entry in (gone, recent, kept):
        index.add(entry)
    index.repair([lost, kept])
    assert {*index.entries()} == {lost, recent, kept}
    # Only directories with entries are left.
    assert not any(path.is_dir() and not [*path.iterdir()] for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_a_page_skips_entries_without_an_object(tmp_path: Path, limit: int) -> None:
    index, entries = TimeIndex(tmp_path), random_entries(90, 5_000)
    for entry in entries:
        index.add(entry)
    existing = sorted(entry for entry in entries if entry.tag)
    page = read_page(index.entries(order="asc"), lambda entry: entry if entry.tag else None, limit)
    assert (list(page.data), page.has_more) == (existing[:limit], limit < len(existing))


PATH = "/v1/llm/model-files/tuned/a b.json"


def sign(links: SignedLinks) -> tuple[str, dict[str, str]]:
    """Sign a URL; return its unquoted path and its query, as a server receives them."""
    url = links.sign_url("http://host:8000/", PATH)
    assert url.startswith("http://host:8000/v1/llm/model-files/tuned/a%20b.json?expires=")
    return PATH, dict(parse_qsl(urlsplit(url).query))


def test_a_signed_url_is_valid_only_at_workers_of_the_same_volume(tmp_path: Path) -> None:
    links, same, other = (SignedLinks(Volume(tmp_path / name)) for name in ("a", "a", "b"))
    assert not links.has_valid_signature(PATH, {})
    # Checking a request without a signature writes nothing to the volume.
    assert list(tmp_path.iterdir()) == []
    assert [checker.has_valid_signature(*sign(links)) for checker in (links, same, other)] == [
        True,
        True,
        False,
    ]
    # Without a volume, a URL is valid only at the worker that signed it.
    links, other = (SignedLinks(Volume(tmp_path / "none", may_create_root=False)) for _ in range(2))
    assert [checker.has_valid_signature(*sign(links)) for checker in (links, other)] == [
        True,
        False,
    ]


def test_other_users_of_the_machine_can_not_read_the_secret(tmp_path: Path) -> None:
    secret = tmp_path / "worker" / "links.secret"
    for _ in ("new", "as an older worker has left it"):
        sign(SignedLinks(Volume(tmp_path)))
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
        secret.chmod(0o644)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("expires", value) for value in ("99999999999", "9" * 5_000, "", "inf")),
        *(("signature", value) for value in ("", "é", "0" * 64)),
    ],
)
def test_a_changed_url_is_invalid(tmp_path: Path, name: str, value: str) -> None:
    links = SignedLinks(Volume(tmp_path))
    path, query = sign(links)
    assert links.has_valid_signature(path, query)
    assert not links.has_valid_signature(path, {**query, name: value})
    assert not links.has_valid_signature(path + "x", query)


def test_a_signed_url_is_invalid_after_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, query = sign(SignedLinks(Volume(tmp_path)))
    for second, is_valid in ((-1.0, True), (0.0, False)):
        now = int(query["expires"]) + second
        monkeypatch.setattr("worker.volume.links.time.time", lambda now=now: now)
        assert SignedLinks(Volume(tmp_path)).has_valid_signature(path, query) is is_valid
    assert VALID_S == 3_600
