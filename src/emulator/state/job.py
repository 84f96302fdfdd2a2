"""A job, from the public request to its end."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
from pydantic import BaseModel, Field

from emulator.options import EXECUTION_TIMEOUT_MS, TTL_MS

# Seconds from time.monotonic to Unix time.
_WALL_CLOCK = time.time() - time.monotonic()


class Status(StrEnum):
    """The states of a job, by the platform's names."""

    IN_QUEUE = "IN_QUEUE"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"


class Condition:
    """Like ``asyncio.Condition``, without a lock and with a timeout. Free while nobody waits."""

    def __init__(self) -> None:
        # A dict for its order: the longest waiting is woken first.
        self._waiters: dict[asyncio.Future[None], None] = {}

    def notify_all(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def wait_for(self, predicate: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until the predicate holds; return False if the timeout comes first."""
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
    """A job's execution policy; None: the endpoint's default."""

    execution_timeout_ms: int | None = Field(
        default=None,
        ge=EXECUTION_TIMEOUT_MS[0],
        le=EXECUTION_TIMEOUT_MS[1],
        alias="executionTimeout",
    )
    ttl_ms: int | None = Field(default=None, ge=TTL_MS[0], le=TTL_MS[1], alias="ttl")
    # Checked only: it is about scaling, which the emulator does not do.
    low_priority: bool = Field(default=False, alias="lowPriority")


class Chunk(NamedTuple):
    """One stream post: what one yield of the handler sent."""

    output: Any
    at: float  # time.monotonic of its arrival
    size: int  # bytes of the post's body


@dataclass(slots=True, eq=False)
class Job:
    """One job, with everything the worker posted for it. Times (`*_at`) are time.monotonic's."""

    id: str
    # The public request's body: `input`, and all else that it holds, each as the JSON that came.
    payload: dict[str, msgspec.Raw]
    ttl_s: float  # from when it was queued to when it expires
    execution_timeout_s: float
    retention_s: float  # how long it is kept after its end
    webhook: str | None = None
    status: Status = Status.IN_QUEUE
    worker: str | None = None  # the id of the worker that took it
    progress: Any = None  # the handler's last progress update
    chunks: list[Chunk] = field(default_factory=list)  # every stream post, in order
    output: Any = None  # of the final post
    error: str | None = None
    queued_at: float = field(default_factory=time.monotonic)
    started_at: float | None = None
    ended_at: float | None = None
    changed: Condition = field(default_factory=Condition)
    timer: asyncio.TimerHandle | None = None  # for its deadline, then for its retention
    attempt: int = 1
    forget_at: float | None = None  # set by a caller's ttl
    redelivered: bool = False  # by a fault on demand: two workers may run it
    _read: int = 0  # chunks already returned by read_chunks

    @property
    def input(self) -> Any:
        """The input, parsed."""
        return json.loads(bytes(self.payload["input"]))

    @property
    def ended(self) -> bool:
        return self.status not in (Status.IN_QUEUE, Status.IN_PROGRESS)

    @property
    def expires_at(self) -> float:
        return self.queued_at + self.ttl_s if self.forget_at is None else self.forget_at

    @property
    def deadline(self) -> float:
        """When it times out."""
        if self.started_at is None:
            return self.expires_at
        return min(self.expires_at, self.started_at + self.execution_timeout_s)

    @property
    def has_unread(self) -> bool:
        return self._read < len(self.chunks)

    def read_chunks(self) -> list[Chunk]:
        """Return the chunks not read before: reading consumes them, as on the platform."""
        unread = self.chunks[self._read :]
        self._read = len(self.chunks)
        return unread

    async def follow(self) -> AsyncGenerator[Chunk, None]:
        """Yield every chunk of this attempt as it arrives, until its end. Consumes none."""
        position, attempt = 0, self.attempt

        def news() -> bool:
            return position < len(self.chunks) or self.ended or self.attempt != attempt

        while await self.changed.wait_for(news):
            if self.attempt != attempt or position == len(self.chunks):
                return
            yield self.chunks[position]
            position += 1

    async def wait_ended(self, timeout_s: float | None = None) -> bool:
        return await self.changed.wait_for(lambda: self.ended, timeout_s)

    def reset(self) -> None:
        """Turn it into a job that was just queued, without outputs."""
        self.attempt += 1
        self.redelivered, self.forget_at = False, None
        self.status = Status.IN_QUEUE
        self.worker = self.progress = self.output = self.error = None
        self.chunks, self._read = [], 0
        self.queued_at = time.monotonic()
        self.started_at = self.ended_at = None

    def report(self) -> dict[str, Any]:
        """Return the status object, as /status, /runsync and webhooks send it."""
        report: dict[str, Any] = {"id": self.id, "status": self.status}
        if self.worker is not None:
            report["workerId"] = self.worker
        if self.started_at is not None:
            report["delayTime"] = _milliseconds(self.started_at - self.queued_at)
            if self.ended_at is not None:
                report["executionTime"] = _milliseconds(self.ended_at - self.started_at)
        output = self.progress if self.status is Status.IN_PROGRESS else self.output
        if output is not None:
            report["output"] = output
        if self.error is not None:
            report["error"] = self.error
        return report

    def timings(self) -> dict[str, Any]:
        """Return when each thing happened: Unix time for `queued_at`, else seconds since then."""

        def since(at: float | None) -> float | None:
            return None if at is None else round(at - self.queued_at, 6)

        return {
            "id": self.id,
            "status": self.status,
            "worker": self.worker,
            "queued_at": round(self.queued_at + _WALL_CLOCK, 6),
            "taken_s": since(self.started_at),
            "first_chunk_s": since(self.chunks[0].at if self.chunks else None),
            "done_s": since(self.ended_at),
            "chunks": [{"at_s": since(chunk.at), "bytes": chunk.size} for chunk in self.chunks],
        }


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
