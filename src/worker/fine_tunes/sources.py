"""Sources of rows for a fine-tune: uploaded files, paths on the volume, URLs, and the job."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from worker.errors import InvalidInput
from worker.files import FILE_PREFIX, Files
from worker.fine_tunes.record import FineTunes
from worker.json_lines import encode_unchecked_line
from worker.media.fetcher import GENERIC_TYPES, ContentTypes, UnusableURL, WebFetcher
from worker.validation import name_field_in_errors
from worker.volume import ids, translate_os_errors

ROW_TYPES = ContentTypes(
    (
        *("text/csv", "text/plain", "text/x-csv", "text/comma-separated-values"),
        *("application/csv", "application/vnd.ms-excel", "application/json"),
        *("application/jsonl", "application/x-jsonl", "application/jsonlines"),
        *("application/x-jsonlines", "application/x-ndjson", "application/ndjson", *GENERIC_TYPES),
    ),
    "CSV or JSONL",
)
PURPOSE = FineTunes.input_purpose
URL_SCHEMES = ("http://", "https://")
# Seconds for fetching a file.
FETCH_TIMEOUT_S = 120.0
MAX_FILE_NAME_LENGTH = 255


@dataclass(slots=True)
class _FileBudget:
    """Limits the bytes of a file that is being fetched."""

    files: Files
    bytes: int = 0

    def check_bytes(self, count: int) -> None:
        if self.bytes + count > self.files.max_bytes:
            raise self.files.too_large_error()

    def add_bytes(self, count: int) -> None:
        self.check_bytes(count)
        self.bytes += count


@dataclass(frozen=True, slots=True)
class RowSources:
    """Creates files from the sources that callers name. Call its methods in threads: they block."""

    files: Files
    fetcher: WebFetcher | None  # None if the worker doesn't fetch URLs
    has_stored_urls: bool = False  # The contents of URLs are stored, and must not be fetched again.

    def find_or_create(self, field: str, source: str, id: str) -> str:
        """Return the id of the file for a source; create the file, with ``id``, if necessary.

        ``source`` is the id of a file, which is returned unchecked, a path on the volume, or a URL.
        Errors name ``field``, in which the request has it.
        """
        with name_field_in_errors(field):
            is_plain = source.startswith(FILE_PREFIX) and not {".", "/"} & set(source)
            if is_plain or ids.is_id(FILE_PREFIX, source):
                return source
            if is_url(source):
                return self._fetch(source, id)
            return self.files.add_volume_file(source, purpose=PURPOSE, id=id).id

    def store_rows(self, rows: Sequence[Mapping[str, Any]], id: str) -> str:
        """Store rows from a job as a file, and return its id."""
        # Invalid rows are reported later, with the numbers of their lines.
        lines = map(encode_unchecked_line, rows)
        with name_field_in_errors("rows"):
            file = self.files.receive(lines, filename=f"{id}.jsonl", purpose=PURPOSE, id=id)
        return file.id

    def _fetch(self, url: str, id: str) -> str:
        if self.has_stored_urls:
            return id
        if self.fetcher is None:
            raise InvalidInput(
                "this worker fetches nothing from addresses (ALLOW_REMOTE_MEDIA=0): "
                "upload the file to /v1/files, and pass its id"
            )
        self.files.quota.check_file_count()
        with self.files.create(id, _url_file_name(url), PURPOSE) as write:
            # A separate event loop, because writes to the volume may block.
            asyncio.run(_download(self.fetcher, url, _FileBudget(self.files), write))
        return id


def is_url(source: str | None) -> bool:
    return source is not None and source.lower().startswith(URL_SCHEMES)


async def _download(
    fetcher: WebFetcher, url: str, budget: _FileBudget, write: Callable[[bytes], object]
) -> None:
    def write_chunk(chunk: bytes) -> None:
        with translate_os_errors():
            write(chunk)

    try:
        async with asyncio.timeout(FETCH_TIMEOUT_S):
            await fetcher.download(url, budget, write_chunk)
    except UnusableURL as reason:
        raise InvalidInput(f"{reason}; or upload the file to /v1/files, and pass its id") from None
    except TimeoutError:
        raise InvalidInput(
            f"it could not be fetched within {FETCH_TIMEOUT_S:g} seconds: "
            "upload the file to /v1/files, and pass its id"
        ) from None


def _url_file_name(url: str) -> str:
    """Return the last component of the URL's path, without the query."""
    try:
        name = PurePosixPath(unquote(urlsplit(url).path, errors="replace")).name
    except ValueError:
        name = ""
    return name[-MAX_FILE_NAME_LENGTH:] or "rows"
