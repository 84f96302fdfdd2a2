"""Lists of objects on the volume, a page at a time: newest or oldest first, after a given one."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from worker.errors import NoSuchObject

# Objects on a page, at most, and their bytes as JSON: a job's answer is one yield.
LARGEST = 10_000
LARGEST_BYTES = 500_000


class Listed(Protocol):
    """An object that lists have."""

    @property
    def id(self) -> str: ...

    @property
    def created_at(self) -> int:
        """Seconds since 1970."""


T = TypeVar("T", bound=Listed)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some objects of a list, and whether there are more after them."""

    data: tuple[T, ...]
    has_more: bool


def fitting(objects: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first objects that have ``LARGEST_BYTES`` together, or the first one."""
    found: list[dict[str, Any]] = []
    size = 0
    for one in objects:
        size += len(json.dumps(one))
        if found and size > LARGEST_BYTES:
            break
        found.append(one)
    return found


def page(
    found: Iterable[T], *, after: str | None = None, limit: int = LARGEST, order: str = "desc"
) -> Page[T]:
    """Return a page of objects, sorted by when they were created, then by their ids.

    Args:
        found: all of them, in any order.
        after: the id of the last one on the page before; None: the first page.
        limit: how many, from 1 to ``LARGEST``.
        order: "desc": newest first; "asc": oldest first.

    Raises:
        NoSuchObject: nothing has the id ``after``.
    """
    sorted_all = sorted(found, key=lambda one: (one.created_at, one.id), reverse=order == "desc")
    start = 0
    if after is not None:
        places = {one.id: place for place, one in enumerate(sorted_all)}
        if after not in places:
            raise NoSuchObject("after: nothing in this list has this id", param="after")
        start = places[after] + 1
    end = start + limit
    return Page(tuple(sorted_all[start:end]), has_more=end < len(sorted_all))
