"""A job of the platform, from the caller's request to the end of its retention."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
from pydantic import BaseModel, Field

from emulator.options import EXECUTION_TIMEOUT_BOUNDS_MS, TTL_BOUNDS_MS

# Difference in seconds between Unix time and time.monotonic.
_MONOTONIC_TO_UNIX_S = time.time() - time.monotonic()


class Status(StrEnum):
    """The states of a job, with the platform's names."""

    IN_QUEUE = "IN_QUEUE"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"


class Condition:
    """A minimal ``asyncio.Condition`` without a lock, but with a timeout."""

    def __init__(self) -> None:
        # A dict because it is ordered: the task that has waited longest wakes first.
        self._waiters: dict[asyncio.Future[None], None] = {}

    def notify_all(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def wait_for(self, predicate: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until the predicate is true; return False if a timeout comes first."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                while not predicate():
                    waiter = loop.create_future()
                    self._waiters[waiter] = None
                    try:
                        await waiter
                    finally:
                        self._waiters.pop(waiter, None)
        except TimeoutError:
            return predicate()
        return True


class Policy(BaseModel):
    """A job's execution policy. None means the endpoint's default."""

    execution_timeout_ms: int | None = Field(
        default=None,
        ge=EXECUTION_TIMEOUT_BOUNDS_MS[0],
        le=EXECUTION_TIMEOUT_BOUNDS_MS[1],
        alias="executionTimeout",
    )
    ttl_ms: int | None = Field(default=None, ge=TTL_BOUNDS_MS[0], le=TTL_BOUNDS_MS[1], alias="ttl")
    # Validated but unused: it concerns scaling, which the emulator doesn't imitate.
    low_priority: bool = Field(default=False, alias="lowPriority")


class Chunk(NamedTuple):
    """The output of one stream post, which is one yield of the handler."""

    output: Any
    arrived_at: float  # time.monotonic of its arrival
    size: int  # bytes of the post's body


@dataclass(slots=True, eq=False)
class Job:
    """A job and everything that its worker posted. Times (``*_at``) are those of time.monotonic."""

    id: str
    # The body of the caller's request: `input` and all other keys, each value as received JSON.
    payload: dict[str, msgspec.Raw]
    ttl_s: float  # seconds from queuing to expiry
    execution_timeout_s: float
    retention_s: float  # seconds from the job's end to the removal of its result
    webhook: str | None = None
    status: Status = Status.IN_QUEUE
    worker_id: str | None = None  # id of the worker that took the job
    progress: Any = None  # the handler's last progress update
    chunks: list[Chunk] = field(default_factory=list)  # every stream post, in order
    result: bytes | None = None  # the output in the final post, as received JSON
    error: str | None = None
    queued_at: float = field(default_factory=time.monotonic)
    started_at: float | None = None
    ended_at: float | None = None
    changed: Condition = field(default_factory=Condition)
    timer: asyncio.TimerHandle | None = None  # ends the job at its deadline, later removes it
    attempt: int = 1
    ttl_ends_at: float | None = None  # time of expiry or removal that a caller has set
    is_redelivered: bool = False  # a fault delivered it twice, so two workers may run it
    _read_count: int = 0  # number of chunks that take_unread_chunks has returned

    @property
    def input(self) -> Any:
        return json.loads(bytes(self.payload["input"]))

    @property
    def output(self) -> Any:
        return None if self.result is None else json.loads(self.result)

    @property
    def has_ended(self) -> bool:
        return self.status not in (Status.IN_QUEUE, Status.IN_PROGRESS)

    @property
    def expires_at(self) -> float:
        return self.queued_at + self.ttl_s if self.ttl_ends_at is None else self.ttl_ends_at

    @property
    def deadline(self) -> float:
        """The time at which the job expires or exceeds its execution timeout."""
        if self.started_at is None:
            return self.expires_at
        return min(self.expires_at, self.started_at + self.execution_timeout_s)

    @property
    def has_unread_chunks(self) -> bool:
        return self._read_count < len(self.chunks)

    def take_unread_chunks(self) -> list[Chunk]:
        """Return the unread chunks. Reading consumes them, as on the platform."""
        unread = self.chunks[self._read_count :]
        self._read_count = len(self.chunks)
        return unread

    async def follow_chunks(self) -> AsyncGenerator[Chunk, None]:
        """Yield this attempt's chunks until it ends; ``take_unread_chunks`` returns them, too."""
        position, attempt = 0, self.attempt

        def has_chunk_or_end() -> bool:
            return position < len(self.chunks) or self.has_ended or self.attempt != attempt

        while await self.changed.wait_for(has_chunk_or_end):
            if self.attempt != attempt or position == len(self.chunks):
                return
            yield self.chunks[position]
            position += 1

    async def wait_for_end(self, timeout_s: float | None = None) -> bool:
        return await self.changed.wait_for(lambda: self.has_ended, timeout_s)

    def reset_for_retry(self) -> None:
        self.attempt += 1
        self.is_redelivered, self.ttl_ends_at = False, None
        self.status = Status.IN_QUEUE
        self.worker_id = self.progress = self.result = self.error = None
        self.chunks, self._read_count = [], 0
        self.queued_at = time.monotonic()
        self.started_at = self.ended_at = None

    def status_json(self) -> list[bytes]:
        """Return the parts of the JSON of the job for callers and webhooks.

        The output of a running job is its progress. The output of the others is a part of its own,
        since copying or parsing a large one for each request would take long.
        """
        body: dict[str, Any] = {"id": self.id, "status": self.status}
        if self.worker_id is not None:
            body["workerId"] = self.worker_id
        if self.started_at is not None:
            body["delayTime"] = _to_milliseconds(self.started_at - self.queued_at)
            if self.ended_at is not None:
                body["executionTime"] = _to_milliseconds(self.ended_at - self.started_at)
        output = self.result
        if self.status is Status.IN_PROGRESS:
            output = None if self.progress is None else json.dumps(self.progress).encode()
        if self.error is not None:
            body["error"] = self.error
        head = json.dumps(body).encode()
        return [head] if output is None else [head[:-1], b', "output": ', output, b"}"]

    def timings(self) -> dict[str, Any]:
        """Return ``queued_at`` in Unix time, seconds from then to each event, and chunk sizes."""

        def since_queued(at: float | None) -> float | None:
            return None if at is None else round(at - self.queued_at, 6)

        return {
            "id": self.id,
            "status": self.status,
            "worker": self.worker_id,
            "queued_at": round(self.queued_at + _MONOTONIC_TO_UNIX_S, 6),
            "taken_s": since_queued(self.started_at),
            "first_chunk_s": since_queued(self.chunks[0].arrived_at if self.chunks else None),
            "done_s": since_queued(self.ended_at),
            "chunks": [
                {"at_s": since_queued(chunk.arrived_at), "bytes": chunk.size}
                for chunk in self.chunks
            ],
        }


def _to_milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
