"""A job: what the platform knows of it from the public request to its end."""

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from emulator.signals import Signal

_WALL_CLOCK = time.time() - time.monotonic()


class Status(StrEnum):
    """Where a job is in its life, in the platform's words."""

    IN_QUEUE = "IN_QUEUE"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"

    @property
    def final(self) -> bool:
        return self not in (Status.IN_QUEUE, Status.IN_PROGRESS)


class Chunk(NamedTuple):
    """What one yield of the handler sent, when it arrived (time.monotonic), and in how many bytes.

    The bytes are those of the POST's body.
    """

    output: Any
    at: float
    size: int


@dataclass(slots=True, eq=False)
class Job:
    """One job, with everything the worker posted for it. Times are those of time.monotonic."""

    id: str
    payload: dict[str, Any]  # the public request's body: input, and what else the caller sent
    ttl_s: float  # from when it was queued to when it expires
    execution_timeout_s: float
    retention_s: float  # how long it is kept once it ended
    webhook: str | None = None
    status: Status = Status.IN_QUEUE
    worker: str | None = None  # who took it
    progress: Any = None  # the last update that the handler sent while it ran
    chunks: list[Chunk] = field(default_factory=list)  # every stream post, in order
    output: Any = None  # what the final post carried
    error: str | None = None
    queued_at: float = field(default_factory=time.monotonic)
    started_at: float | None = None
    ended_at: float | None = None
    changed: Signal = field(default_factory=Signal)
    # What happens next by itself: its time is up, or its retention is.
    timer: asyncio.TimerHandle | None = None
    attempt: int = 1
    forget_at: float | None = None  # where a caller said so
    delivered_again: bool = False  # on demand, so that two workers may run it
    _read: int = 0  # chunks already handed out by read_chunks

    @property
    def ended(self) -> bool:
        return self.status.final

    @property
    def expires_at(self) -> float:
        return self.queued_at + self.ttl_s if self.forget_at is None else self.forget_at

    @property
    def deadline(self) -> float:
        """When the platform gives it up, if it has not ended by then."""
        if self.started_at is None:
            return self.expires_at
        return min(self.expires_at, self.started_at + self.execution_timeout_s)

    @property
    def has_unread(self) -> bool:
        return self._read < len(self.chunks)

    def read_chunks(self) -> list[Chunk]:
        """The chunks nobody has read yet: reading takes them, as on the platform."""
        unread = self.chunks[self._read :]
        self._read = len(self.chunks)
        return unread

    async def follow(self) -> AsyncGenerator[Chunk, None]:
        """Every chunk from the first on, as it arrives, until the job ends. Takes nothing away."""
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
        """Make it a job that was just queued; its outputs are gone."""
        self.attempt += 1
        self.delivered_again, self.forget_at = False, None
        self.status = Status.IN_QUEUE
        self.worker = self.progress = self.output = self.error = None
        self.chunks, self._read = [], 0
        self.queued_at = time.monotonic()
        self.started_at = self.ended_at = None

    def report(self) -> dict[str, Any]:
        """The status object that /status, /runsync and webhooks carry."""
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
        """When each thing happened, in seconds since the job was queued (Unix time)."""

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
