"""Where the rows of a fine-tune come from: an uploaded file, one on the volume, or an address."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from worker.errors import InvalidInput
from worker.files import PREFIX, Files
from worker.fine_tunes.record import FineTunes
from worker.media.addresses import Unusable
from worker.media.fetcher import UNKNOWN, Fetcher, Types
from worker.validation import of_field
from worker.volume import failures

ROWS = Types(
    (
        *("text/csv", "text/plain", "text/x-csv", "text/comma-separated-values"),
        *("application/csv", "application/vnd.ms-excel", "application/json"),
        *("application/jsonl", "application/x-jsonl", "application/jsonlines"),
        *("application/x-jsonlines", "application/x-ndjson", "application/ndjson", *UNKNOWN),
    ),
    "CSV or JSONL",
)
PURPOSE = FineTunes.purpose
URLS = ("http://", "https://")
# Seconds for a file.
PATIENCE_S = 120.0
LONGEST_NAME = 255

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(slots=True)
class _Room:
    """How many bytes a file may still have."""

    files: Files
    bytes: int = 0

    def expect(self, count: int) -> None:
        if self.bytes + count > self.files.max_bytes:
            raise self.files.too_large()

    def take(self, count: int) -> None:
        self.expect(count)
        self.bytes += count


@dataclass(frozen=True, slots=True)
class Sources:
    """Makes files of what callers name. Its methods wait for disks and hosts: for threads.

    Args:
        files: of the volume.
        fetcher: of ``ROWS``; None: nothing is fetched.
        fetched: whether what addresses had is there already.
    """

    files: Files
    fetcher: Fetcher | None
    fetched: bool = False

    def file(self, field: str, given: str, id: str) -> str:
        """Return the id of the file that a caller names.

        Args:
            field: where the caller did.
            given: the id of a file, a path on the volume, or an address.
            id: what a file that has to be made will have.

        Raises:
            RequestError: it can't be had; naming the field.
            VolumeError: the volume fails.
        """
        with of_field(field):
            if given.startswith(PREFIX) and not {".", "/"} & set(given):
                return given
            if is_address(given):
                return self._fetched(given, id)
            return self.files.refer(given, purpose=PURPOSE, id=id).id

    def rows(self, rows: Sequence[Mapping[str, Any]], id: str) -> str:
        """Return the id of a file of rows that came with a job."""
        # What is no JSON has its line among the mistakes.
        lines = ((_encode(row) + "\n").encode(errors="surrogatepass") for row in rows)
        with of_field("rows"):
            file = self.files.receive(lines, filename=f"{id}.jsonl", purpose=PURPOSE, id=id)
        return file.id

    def _fetched(self, url: str, id: str) -> str:
        if self.fetched:
            return id
        if self.fetcher is None:
            raise InvalidInput(
                "this worker fetches nothing from addresses (ALLOW_REMOTE_MEDIA=0): "
                "send the file to /v1/files, and give its id"
            )
        with self.files.writing(id, _name(url), PURPOSE) as write:
            # On a loop of its own: writing to the volume may stand still.
            asyncio.run(_download(self.fetcher, url, _Room(self.files), write))
        return id


def is_address(given: str | None) -> bool:
    """Return whether what a caller names is fetched from a host."""
    return given is not None and given.lower().startswith(URLS)


async def _download(
    fetcher: Fetcher, url: str, room: _Room, write: Callable[[bytes], object]
) -> None:
    def write_part(part: bytes) -> None:
        with failures():
            write(part)

    try:
        async with asyncio.timeout(PATIENCE_S):
            await fetcher.download(url, room, write_part)
    except Unusable as reason:
        raise InvalidInput(f"{reason}; or send the file to /v1/files, and give its id") from None
    except TimeoutError:
        raise InvalidInput(
            f"it could not be fetched within {PATIENCE_S:g} seconds: "
            "send the file to /v1/files, and give its id"
        ) from None


def _name(url: str) -> str:
    """Return what a fetched file is called: the last part of the path, without the query."""
    try:
        name = PurePosixPath(unquote(urlsplit(url).path, errors="replace")).name
    except ValueError:
        name = ""
    return name[-LONGEST_NAME:] or "rows"
