"""One job's answer on its way to the platform: its chunks in order, then its result."""

import asyncio
import json
import time
from typing import Any

from job_loop.wire import InDoubt, NotDelivered, NotTaken, Wire, pause_s
from worker.errors import AnswerTooLarge, StreamInDoubt
from worker.record import JobRecord

# Bytes. The platform drops a larger result, and completes the job without it.
LARGEST_RESULT = 19_000_000
# Seconds for which a post is tried, counted from its first failure, if the job has no time limit of
# its own: the platform's default for a whole job.
PATIENCE_S = 600.0

# The platform refuses NaN, and the answer would be lost: as a defect it fails its job.
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


class Delivery:
    """Posts what a job yields, and counts the posts in its record."""

    def __init__(self, wire: Wire, record: JobRecord) -> None:
        self._wire = wire
        self._record = record
        self._parts: list[bytes] = []
        self._size = 0
        self._ends_at = None if record.limit_s is None else record.taken_at + record.limit_s

    async def chunk(self, value: Any) -> None:
        """Post a yield.

        Raises:
            AnswerTooLarge: the platform would not take a result with so many yields.
            StreamInDoubt: readers of the stream would miss it, or may have it twice.
        """
        part = _encode(value).encode(errors="replace")
        self._parts.append(part)
        self._size += len(part) + len(", ")
        self._record.chunks += 1
        if self._size > LARGEST_RESULT:
            raise AnswerTooLarge(
                f"The answer has more than {LARGEST_RESULT:,} bytes in all, which the platform "
                "does not keep: ask for less, or for fewer prompts in one job."
            )
        try:
            await self._post(self._wire.urls.chunk(self._record.id), b'{"output": %b}' % part)
        except NotDelivered as lost:
            # An answer that is no stream comes whole with the result.
            if self._record.streamed:
                raise StreamInDoubt from lost

    async def result(self) -> None:
        """Post all yields together as the job's result.

        Raises:
            NotDelivered: the job's time is over, or the platform knows no such job.
        """
        await self._done(b'{"output": [%b]}' % b", ".join(self._parts))

    async def failure(self, error: str) -> None:
        """Post an error, as JSON text, as the job's result.

        Raises:
            NotDelivered: as of ``result``.
        """
        await self._done(b'{"error": %b}' % _encode(error).encode(errors="replace"))

    async def _done(self, body: bytes) -> None:
        await self._post(self._wire.urls.result(self._record.id), body, repeatable=True)

    async def _post(self, url: str, body: bytes, *, repeatable: bool = False) -> None:
        """Post until it has arrived, for as long as that makes sense.

        ``repeatable``: it does no harm if the post arrives twice.
        """
        failures, give_up_at = 0, self._ends_at
        while True:
            try:
                await self._wire.post(url, self._record.id, body)
            except NotTaken as failed:
                last: NotDelivered = failed
            except InDoubt as failed:
                if not repeatable:
                    raise
                last = failed
            else:
                return
            failures += 1
            pause, now = pause_s(failures), time.monotonic()
            give_up_at = give_up_at or now + PATIENCE_S
            if now + pause > give_up_at:
                raise last
            self._record.posts_retried += 1
            await asyncio.sleep(pause)
