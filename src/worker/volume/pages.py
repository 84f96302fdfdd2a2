"""Lists of objects on the volume, newest or oldest first, and the indexes from which they are read.

An index makes a page of a list cost the same, however many objects there are.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from worker.errors import NoSuchObject
from worker.volume import ids
from worker.volume.durable import make_directory
from worker.volume.ids import UNKNOWN_LOCATION, VolumeLocation

# Maximum number of objects on a page, and their maximum size in bytes of JSON: a job returns a page
# as one chunk.
MAX_OBJECTS = 10_000
MAX_BYTES = 500_000
# Age in seconds from which an entry without an object is removed: its object may be on the way, and
# the clocks of machines differ.
_ORPHAN_S = 86_400


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


@dataclass(frozen=True, slots=True, order=True)
class IndexEntry:
    """The entry of an object in an index.

    Args:
        created_at: Creation time in seconds since 1970.
        id: Id of the object.
        tag: A property by which lists are filtered, without a comma; empty if they aren't.
        expires_at: Expiry time in seconds since 1970; 0 for never.
    """

    created_at: int
    id: str
    tag: str = ""
    expires_at: int = 0

    @classmethod
    def from_file_name(cls, name: str) -> "IndexEntry":
        created_at, id, tag, expires_at = name.split(",")
        return cls(int(created_at), id, tag, int(expires_at))

    @property
    def file_name(self) -> str:
        # The names are in the order of the entries, as long as times have ten digits.
        return f"{self.created_at:010},{self.id},{self.tag},{self.expires_at}"

    @property
    def is_expired(self) -> bool:
        return 0 < self.expires_at <= time.time()


class TimeIndex:
    """The objects of one kind on the volume by their creation times. All methods access files.

    An entry is an empty file, whose name has everything. It is written before its object and
    removed after it, so there may be no object for an entry. The methods raise ``OSError`` if the
    volume fails.

    Args:
        directory: Directory of the index; created with the first entry.
        spans: Seconds of creation times in a directory, on each level below ``directory``.
    """

    def __init__(self, directory: Path, spans: tuple[int, ...] = (1_000, 1)) -> None:
        self._directory = directory
        self._spans = spans

    def add(self, entry: IndexEntry) -> None:
        path = self._path(entry)
        make_directory(path.parent)
        path.touch()

    def remove(self, entry: IndexEntry) -> None:
        self._path(entry).unlink(missing_ok=True)

    def entries(
        self, *, order: str = "desc", after: IndexEntry | None = None
    ) -> Iterator[IndexEntry]:
        """Yield the entries, "desc" for newest first, that come after another one."""
        return self._read_entries(self._directory, self._spans, order == "desc", after)

    def repair(self, expected: Iterable[IndexEntry]) -> None:
        """Add missing entries of the existing objects; remove old entries without an object."""
        oldest = time.time() - _ORPHAN_S
        entries, expected = set(self.entries()), set(expected)
        for entry in expected - entries:
            self.add(entry)
        for entry in entries - expected:
            if entry.created_at < oldest:
                self.remove(entry)
                # Nothing is added to an old directory any more.
                with contextlib.suppress(OSError):  # not empty
                    for folder in self._path(entry).parents[: len(self._spans)]:
                        folder.rmdir()

    def _path(self, entry: IndexEntry) -> Path:
        folders = [str(entry.created_at // span) for span in self._spans]
        return self._directory.joinpath(*folders, entry.file_name)

    def _read_entries(
        self,
        directory: Path,
        spans: tuple[int, ...],
        is_reverse: bool,
        after: IndexEntry | None,
    ) -> Iterator[IndexEntry]:
        def is_later(entry: IndexEntry) -> bool:
            return after is None or (entry < after if is_reverse else entry > after)

        try:
            # ``Path.iterdir`` takes ten times as long.
            with os.scandir(directory) as found:
                names = [entry.name for entry in found]
        except FileNotFoundError:
            return
        if not spans:
            entries = map(IndexEntry.from_file_name, sorted(names, reverse=is_reverse))
            yield from filter(is_later, entries)
            return
        for number in sorted(map(int, names), reverse=is_reverse):
            edge = (number if is_reverse else number + 1) * spans[0]
            if is_later(IndexEntry(edge, "")):
                yield from self._read_entries(directory / str(number), spans[1:], is_reverse, after)


def read_page(
    entries: Iterable[IndexEntry], find: Callable[[IndexEntry], T | None], limit: int = MAX_OBJECTS
) -> Page[T]:
    """Return a page of the objects of entries, as far as they exist.

    Args:
        entries: Entries in the order of the list, from the beginning of the page.
        find: Returns the object of an entry; None if it is gone, or doesn't belong there.
        limit: Maximum number of objects on the page.
    """
    found: list[T] = []
    for entry in entries:
        if (item := find(entry)) is not None:
            if len(found) == limit:
                return Page(tuple(found), has_more=True)
            found.append(item)
    return Page(tuple(found), has_more=False)


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
    """Return a page of objects in memory, sorted by creation time and then by id.

    Args:
        objects: All objects of the list, in any order.
        after: Id of the last object on the previous page; None for the first page.
        limit: Maximum number of objects on the page.
        order: "desc" for newest first, "asc" for oldest first.
        location: Volume of the objects.

    Raises:
        NoSuchObject: No object has the id ``after``.
    """
    in_order = sorted(objects, key=lambda one: (one.created_at, one.id), reverse=order == "desc")
    start = 0
    if after is not None:
        positions = {one.id: place for place, one in enumerate(in_order)}
        if after not in positions:
            raise unknown_position_error(after, location)
        start = positions[after] + 1
    end = start + limit
    return Page(tuple(in_order[start:end]), has_more=end < len(in_order))


def unknown_position_error(after: str, location: VolumeLocation = UNKNOWN_LOCATION) -> NoSuchObject:
    """Return the error for a page after an object that isn't in the list.

    Raises:
        OnOtherVolume: The object is on another volume.
    """
    if ids.is_any_id(after):
        location.check_name("object", after, "after")
    return NoSuchObject("after: nothing in this list has this id", param="after")
