"""One job's answer on its way to the platform: its chunks in order, then its result."""

import json
import time
from typing import Any

from job_loop.wire import InDoubt, NotDelivered, Wire
from worker.errors import AnswerTooLarge, Undelivered
from worker.record import JobRecord

# Bytes. The platform drops a larger result, and completes the job without it.
LARGEST_RESULT = 19_000_000
# Seconds for which a post is tried, counted from its first failure, if the job has no time limit of
# its own: the platform's default for a whole job.
PATIENCE_S = 600.0

_encode = json.JSONEncoder(ensure_ascii=False).encode


class Delivery:
    """Posts what a job yields.

    Args:
        wire: to the platform.
        job: as the platform handed it over.
        record: counts the posts.
    """

    def __init__(self, wire: Wire, job: dict[str, Any], record: JobRecord) -> None:
        self._wire = wire
        self._id: str = job["id"]
        self._record = record
        self._parts: list[bytes] = []
        self._failed_at: float | None = None
        limit_s = _time_limit_s(job)
        self._ends_at = None if limit_s is None else record.taken_at + limit_s

    async def chunk(self, value: Any) -> None:
        """Post a yield.

        Raises:
            Undelivered: readers of the stream would miss it, or may have it twice.
        """
        part = _encode(value).encode(errors="replace")
        self._parts.append(part)
        self._record.chunks += 1
        try:
            await self._post(self._wire.urls.chunk(self._id), b'{"output": %b}' % part)
        except InDoubt as lost:
            # An answer that is no stream comes whole with the result.
            if self._record.streamed:
                raise Undelivered from lost
        except NotDelivered as lost:
            raise Undelivered from lost

    async def result(self) -> None:
        """Post all yields together as the job's result.

        Raises:
            AnswerTooLarge: the platform would not take it.
            NotDelivered: the job's time is over, or the platform knows no such job.
        """
        body = b'{"output": [%b]}' % b", ".join(self._parts)
        if len(body) > LARGEST_RESULT:
            raise AnswerTooLarge(
                f"The answer has {len(body):,} bytes in all, and the platform keeps "
                f"{LARGEST_RESULT:,}: ask for less, or for fewer prompts in one job."
            )
        await self._done(body)

    async def failure(self, error: str) -> None:
        """Post an error, as JSON text, as the job's result.

        Raises:
            NotDelivered: as of ``result``.
        """
        await self._done(b'{"error": %b}' % _encode(error).encode(errors="replace"))

    async def _done(self, body: bytes) -> None:
        await self._post(self._wire.urls.result(self._id), body, repeatable=True)

    async def _post(self, url: str, body: bytes, *, repeatable: bool = False) -> None:
        await self._wire.post(
            url,
            body,
            job_id=self._id,
            until=self._until,
            repeatable=repeatable,
            again=self._count,
        )
        self._failed_at = None

    def _until(self) -> float:
        if self._ends_at is not None:
            return self._ends_at
        self._failed_at = self._failed_at or time.monotonic()
        return self._failed_at + PATIENCE_S

    def _count(self) -> None:
        self._record.posts_retried += 1


def _time_limit_s(job: dict[str, Any]) -> float | None:
    """Return the job's own time limit, if the platform has handed it over."""
    policy = job.get("policy")
    limit_ms = policy.get("executionTimeout") if isinstance(policy, dict) else None
    return limit_ms / 1000 if isinstance(limit_ms, int | float) else None
