"""Replaces the media of a request by data URLs that are within all limits."""

import asyncio
import base64
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from worker.errors import InvalidInput
from worker.media.addresses import Unusable
from worker.media.contents import Limits, Room, Sums, check, decoded, from_base64
from worker.media.fetcher import Fetcher
from worker.media.walker import Kind, Medium, Path, find, replaced

# Requests whose media are fetched or read at once: others wait, so that memory is bounded.
REQUESTS_AT_ONCE = 8
# Fetches of one request at once.
FETCHES_AT_ONCE = 4


class Media:
    """The media of one engine's requests. Use on one event loop.

    Args:
        limits: of a request.
        fetcher: fetches remote media.
        kinds: what the model takes; none if it reads text only.
    """

    def __init__(self, limits: Limits, fetcher: Fetcher, kinds: Collection[Kind]) -> None:
        self._limits = limits
        self._fetcher = fetcher
        self._kinds = frozenset(kinds)
        self._turns = asyncio.Semaphore(REQUESTS_AT_ONCE)
        # Files are checked in threads that nothing else waits for: one for each request at once.
        self._threads = ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="media")

    async def inlined(
        self, body: Mapping[str, Any], keys: Iterable[str]
    ) -> tuple[Mapping[str, Any], bool]:
        """Return a body whose media are all data URLs, and whether it has any.

        Args:
            body: of a request; it stays as it is.
            keys: those in which media may stand.

        Raises:
            InvalidInput: a part or a medium is refused; naming its place, limit and size.
        """
        found = find(body, keys)
        if not found:
            return body, False
        # All that can be refused without a look at them.
        self._refuse(found)
        async with self._turns:
            values = await self._values(found)
        return replaced(body, values) if values else body, True

    def _refuse(self, found: list[Medium]) -> None:
        if (count := len(found)) > self._limits.parts:
            most = self._limits.parts
            message = f"{count} media in one request, and at most {most} are taken"
            raise _refused(found[most], f"{message} (MEDIA_MAX_PARTS)")
        for medium in found:
            if medium.kind not in self._kinds:
                takes = " and ".join(["text", *sorted(self._kinds)])
                raise _refused(medium, f"this model takes {takes}")
            if _is_remote(medium) and not self._limits.remote:
                raise _refused(medium, "this endpoint takes media as data: URLs only")

    async def _values(self, found: list[Medium]) -> dict[Path, str]:
        """Return the data URLs of remote media; check all others."""
        shared = _Shared()
        tasks = [asyncio.create_task(self._value(one, shared)) for one in found]
        try:
            async with asyncio.timeout(self._limits.seconds):
                values = [await task for task in tasks]
        except TimeoutError:
            late = next(one for one, task in zip(found, tasks, strict=True) if not _is_done(task))
            seconds = f"{self._limits.seconds:g} seconds (MEDIA_FETCH_TIMEOUT_S)"
            message = f"the media could not be fetched and checked within {seconds}"
            raise _refused(late, message) from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        pairs = zip(found, values, strict=True)
        return {medium.path: value for medium, value in pairs if value is not None}

    async def _value(self, medium: Medium, shared: "_Shared") -> str | None:
        room = Room(self._limits, medium.name, shared.sums)
        if not _is_remote(medium):
            return await self._checked(shared, partial(_check_data, medium, room))
        async with shared.fetching:
            try:
                file = await self._fetcher.fetch(medium.value, room)
            except Unusable as reason:
                raise _refused(medium, str(reason)) from None
        return await self._checked(shared, partial(_data_url, medium.kind, file, room))

    async def _checked(self, shared: "_Shared", check: Callable[[], str | None]) -> str | None:
        async with shared.checking:
            return await asyncio.get_running_loop().run_in_executor(self._threads, check)


@dataclass(slots=True)
class _Shared:
    """What all media of a request share; a request has one thread at a time."""

    sums: Sums = field(default_factory=Sums)
    fetching: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(FETCHES_AT_ONCE))
    checking: asyncio.Lock = field(default_factory=asyncio.Lock)


def _is_remote(medium: Medium) -> bool:
    return not medium.encoded and medium.value[:5].lower() != "data:"


def _is_done(task: "asyncio.Task[str | None]") -> bool:
    return task.done() and not task.cancelled()


def _check_data(medium: Medium, room: Room) -> None:
    kind, files = medium.kind, list[bytes]()
    if medium.encoded:
        files = [from_base64(medium.value, room)]
    else:
        kind, files = decoded(medium.kind, medium.value, room)
    for file in files:
        check(kind, file, room)


def _data_url(kind: Kind, file: bytes, room: Room) -> str:
    type_ = check(kind, file, room)
    return f"data:{type_};base64,{base64.b64encode(file).decode()}"


def _refused(medium: Medium, reason: str) -> InvalidInput:
    return InvalidInput(f"{medium.name}: {reason}", param=medium.name)
