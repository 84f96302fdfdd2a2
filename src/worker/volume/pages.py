"""Paginated lists of objects on the volume, newest or oldest first."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from worker.errors import NoSuchObject
from worker.volume import ids
from worker.volume.location import UNKNOWN_LOCATION, VolumeLocation

# Maximum number of objects on a page, and their maximum size in bytes of JSON: a job returns a page
# as one chunk.
MAX_OBJECTS = 10_000
MAX_BYTES = 500_000


class Listable(Protocol):
    """An object that can be listed."""

    @property
    def id(self) -> str: ...

    @property
    def created_at(self) -> int:
        """Creation time in seconds since 1970."""


T = TypeVar("T", bound=Listable)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list, and whether more objects follow."""

    data: tuple[T, ...]
    has_more: bool


def truncate_page(objects: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first objects whose JSON fits into ``MAX_BYTES``, at least one object."""
    fitting: list[dict[str, Any]] = []
    size = 0
    for item in objects:
        size += len(json.dumps(item))
        if fitting and size > MAX_BYTES:
            break
        fitting.append(item)
    return fitting


def paginate(
    objects: Iterable[T],
    *,
    after: str | None = None,
    limit: int = MAX_OBJECTS,
    order: str = "desc",
    location: VolumeLocation = UNKNOWN_LOCATION,
) -> Page[T]:
    """Return a page of objects, sorted by creation time and then by id.

    Args:
        objects: All objects of the list, in any order.
        after: Id of the last object on the previous page; None for the first page.
        limit: Maximum number of objects on the page, from 1 to ``MAX_OBJECTS``.
        order: "desc" for newest first, "asc" for oldest first.
        location: Volume of the objects.

    Raises:
        NoSuchObject: No object has the id ``after``.
        OnOtherVolume: The object ``after`` is on another volume.
    """
    in_order = sorted(objects, key=lambda one: (one.created_at, one.id), reverse=order == "desc")
    start = 0
    if after is not None:
        positions = {one.id: place for place, one in enumerate(in_order)}
        if after not in positions:
            if ids.is_any_id(after):
                location.check_name("object", after, "after")
            raise NoSuchObject("after: nothing in this list has this id", param="after")
        start = positions[after] + 1
    end = start + limit
    return Page(tuple(in_order[start:end]), has_more=end < len(in_order))
