"""Pages of lists, and the indexes from which they are read."""

import random
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from worker.errors import NoSuchObject, OnOtherVolume
from worker.volume import ids
from worker.volume.ids import VolumeLocation
from worker.volume.pages import IndexEntry, TimeIndex, paginate, read_page

NOW = 1_800_000_000


@dataclass(frozen=True)
class Item:
    """An item of a list."""

    id: str
    created_at: int


# Two items were created in the same second.
ITEMS = [Item("b", 2), Item("d", 3), Item("a", 1), Item("c", 2)]


@pytest.mark.parametrize(("order", "sorted_ids"), [("desc", "dcba"), ("asc", "abcd")])
@pytest.mark.parametrize("limit", [1, 3, 4])
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
    here, there = "euvolume01", "usvolume02"
    for after in ("z", f"batch_{'a' * 24}.vol-{here}", f"batch.vol-{there}"):
        with pytest.raises(NoSuchObject, match="after: nothing") as exc_info:
            paginate(ITEMS, after=after, location=VolumeLocation(here))
        assert exc_info.value.param == "after"
    with pytest.raises(OnOtherVolume):
        paginate(ITEMS, after=f"batch_{'a' * 24}.vol-{there}", location=VolumeLocation(here))


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
@pytest.mark.parametrize("seconds", [1, 9_999, 10**6])
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
