"""Pages of a list: every object once, in their order."""

from dataclasses import dataclass
from typing import Any

import pytest

from worker.errors import InvalidInput, NoSuchObject
from worker.volume.pages import LARGEST, LARGEST_BYTES, page


@dataclass(frozen=True)
class Made:
    """An object of a list."""

    id: str
    created_at: int

    def shown(self) -> dict[str, Any]:
        return {"id": self.id}


# Two are of the same second.
ALL = [Made("b", 2), Made("d", 3), Made("a", 1), Made("c", 2)]


@pytest.mark.parametrize(("order", "sorted_ids"), [("desc", "dcba"), ("asc", "abcd")])
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_pages_have_every_object_once_in_order(order: str, sorted_ids: str, limit: int) -> None:
    seen: list[str] = []
    after, more = None, True
    while more:
        found = page(ALL, after=after, limit=limit, order=order)
        assert len(found.data) <= limit
        seen += [one.id for one in found.data]
        after, more = seen[-1], found.has_more
    assert "".join(seen) == sorted_ids


def test_a_page_ends_where_an_answer_would_be_too_large() -> None:
    """One caller's large objects must not make everybody's lists too large for a job."""

    @dataclass(frozen=True)
    class Large(Made):
        def shown(self) -> dict[str, Any]:
            return {"id": self.id, "metadata": "a" * (LARGEST_BYTES // 3)}

    objects = [Large(f"{number}", number) for number in range(5)]
    first = page(objects).shown()
    assert ([one["id"] for one in first["data"]], first["has_more"]) == (["4", "3"], True)
    assert (first["first_id"], first["last_id"]) == ("4", "3")
    last = page(objects, after="1").shown()
    assert ([one["id"] for one in last["data"]], last["has_more"]) == (["0"], False)


def test_a_page_has_openais_shape() -> None:
    assert page(ALL, limit=2).shown() == {
        "object": "list",
        "data": [{"id": "d"}, {"id": "c"}],
        "first_id": "d",
        "last_id": "c",
        "has_more": True,
    }
    for empty in (page(ALL[:0]), page(ALL, after="a")):
        assert (empty.shown()["data"], empty.shown()["has_more"]) == ([], False)
        assert (empty.shown()["first_id"], empty.shown()["last_id"]) == (None, None)


@pytest.mark.parametrize(
    ("named", "param"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": -1}, "limit"),
        ({"limit": LARGEST + 1}, "limit"),
        ({"order": "up"}, "order"),
    ],
)
def test_a_wrong_bound_is_refused_by_name(named: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        page(ALL, **named)
    assert refused.value.param == param


def test_a_page_after_nothing_that_is_there_is_refused() -> None:
    with pytest.raises(NoSuchObject) as refused:
        page(ALL, after="z")
    assert (refused.value.status, refused.value.param) == (404, "after")
