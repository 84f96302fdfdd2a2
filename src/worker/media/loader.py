"""Checks the media of a request, and replaces remote media with ``data:`` URLs."""

import asyncio
import base64
import string
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from worker.errors import field_error
from worker.media.contents import (
    MediaBudget,
    MediaLimits,
    MediaTotals,
    check_file,
    decode_base64,
    read_data_url,
)
from worker.media.fetcher import UnusableURL, WebFetcher
from worker.media.walker import MediaKind, Medium, ValuePath, find_media, replace_values

# Number of requests whose media are fetched or checked concurrently. Further requests wait, which
# bounds memory.
MAX_CONCURRENT_REQUESTS = 8
# White space, which many programs write into base64: a map for ``str.translate`` that removes it.
WHITE_SPACE = dict.fromkeys(map(ord, string.whitespace))
# Number of concurrent fetches of one request.
MAX_FETCHES = 4


class MediaLoader:
    """Loads the media of the requests of one engine, on one event loop.

    ``kinds`` are those that the model accepts; empty if it reads only text.
    """

    def __init__(
        self, limits: MediaLimits, fetcher: WebFetcher, kinds: Collection[MediaKind]
    ) -> None:
        self._limits = limits
        self._fetcher = fetcher
        self._kinds = frozenset(kinds)
        self._request_slots = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)
        # A separate pool, so that checks delay no other work. Each request uses one thread.
        self._threads = ThreadPoolExecutor(MAX_CONCURRENT_REQUESTS, thread_name_prefix="media")

    async def inline_media(
        self, body: Mapping[str, Any], keys: Iterable[str]
    ) -> tuple[Mapping[str, Any], bool]:
        """Return a body without remote media, and whether it has any media.

        All media are checked; remote ones become ``data:`` URLs in a copy. ``keys`` are the keys of
        the body that may contain media.
        """
        media = find_media(body, keys)
        if not media:
            return body, False
        # Refuse everything that can be refused without reading the media.
        if (count := len(media)) > self._limits.parts:
            limit = self._limits.parts
            message = f"{count} media in one request, and at most {limit} are accepted"
            raise field_error(media[limit].dotted_path, f"{message} (MEDIA_MAX_PARTS)")
        for medium in media:
            if medium.kind not in self._kinds:
                accepted = " and ".join(["text", *sorted(self._kinds)])
                raise field_error(medium.dotted_path, f"this model accepts {accepted}")
            if _is_remote(medium) and not self._limits.allow_remote:
                raise field_error(
                    medium.dotted_path, "this endpoint accepts media as data: URLs only"
                )
        async with self._request_slots:
            values = await self._load_all_media(media)
        return replace_values(body, values) if values else body, True

    async def _load_all_media(self, media: list[Medium]) -> dict[ValuePath, str]:
        """Check all media, and return new values by their paths: URLs of ``data:``, or base64."""
        state = _SharedMediaState()
        tasks = [asyncio.create_task(self._load_medium(medium, state)) for medium in media]
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                values = [await task for task in tasks]
        except TimeoutError:
            unfinished = next(
                medium
                for medium, task in zip(media, tasks, strict=True)
                if not task.done() or task.cancelled()
            )
            seconds = f"{self._limits.timeout_s:g} seconds (MEDIA_FETCH_TIMEOUT_S)"
            message = f"the media could not be fetched and checked within {seconds}"
            raise field_error(unfinished.dotted_path, message) from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        pairs = zip(media, values, strict=True)
        return {medium.path: value for medium, value in pairs if value is not None}

    async def _load_medium(self, medium: Medium, state: "_SharedMediaState") -> str | None:
        budget = MediaBudget(self._limits, medium.dotted_path, state.totals)
        if not _is_remote(medium):
            return await self._run_check_in_thread(
                state, partial(_check_inline_medium, medium, budget)
            )
        async with state.fetch_slots:
            try:
                file = await self._fetcher.fetch(medium.value, budget)
            except UnusableURL as reason:
                raise field_error(medium.dotted_path, str(reason)) from None
        return await self._run_check_in_thread(
            state, partial(_to_data_url, medium.kind, file, budget)
        )

    async def _run_check_in_thread(
        self, state: "_SharedMediaState", check: Callable[[], str | None]
    ) -> str | None:
        async with state.check_lock:
            return await asyncio.get_running_loop().run_in_executor(self._threads, check)


@dataclass(slots=True)
class _SharedMediaState:
    """State shared by all media of a request. The lock limits a request to one thread at a time."""

    totals: MediaTotals = field(default_factory=MediaTotals)
    fetch_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_FETCHES))
    check_lock: asyncio.Lock = field(default_factory=asyncio.Lock)


def _is_remote(medium: Medium) -> bool:
    return not medium.is_base64 and medium.value[:5].lower() != "data:"


def _check_inline_medium(medium: Medium, budget: MediaBudget) -> str | None:
    """Check base64; return it without white space, which vLLM refuses, or None if it has none."""
    kind, files, value = medium.kind, list[bytes](), medium.value
    if value.isascii():
        value = value.translate(WHITE_SPACE)
    if medium.is_base64:
        files = [decode_base64(value, budget)]
    else:
        kind, files = read_data_url(medium.kind, value, budget)
    for file in files:
        check_file(kind, file, budget)
    return value if len(value) < len(medium.value) else None


def _to_data_url(kind: MediaKind, file: bytes, budget: MediaBudget) -> str:
    type_ = check_file(kind, file, budget)
    return f"data:{type_};base64,{base64.b64encode(file).decode()}"
