"""A worker, as the platform sees it."""

import asyncio
import signal
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakSet

from emulator.state.job import Condition


class Process(Protocol):
    """The process of a worker that the emulator started."""

    @property
    def pid(self) -> int: ...

    def signal(self, number: signal.Signals) -> None: ...


@dataclass(slots=True, eq=False)
class Worker:
    """A worker that the platform has heard of."""

    id: str
    ready: bool = False  # it has asked for a job since its process started, to do it
    failed: bool = False  # it asks for jobs only to answer why its start failed
    unhealthy: bool = False  # its ping said so, its start failed, or it exited before it was ready
    starts: int = 0  # of its process
    process: Process | None = None  # None: not started by the emulator, or not running
    stops: list[str] = field(default_factory=list)  # ids of cancelled jobs, not yet sent to it
    pings: int = 0
    takes: int = 0  # requests for jobs
    jobs: int = 0  # handed over to it
    chunks: int = 0  # stream posts
    results: int = 0
    late_posts: int = 0  # chunks and results of a job that had ended
    late_chunks: int = 0  # of these, the chunks after a result
    frozen: bool = False  # its processes are stopped, and it is answered nothing
    thaw_timer: asyncio.TimerHandle | None = None
    connections: WeakSet[asyncio.BaseTransport] = field(default_factory=WeakSet)
    changed: Condition = field(default_factory=Condition)

    def state(self, *, busy: bool) -> str:
        """Return the word under which /health counts it."""
        if self.unhealthy:
            return "unhealthy"
        if not self.ready:
            return "initializing"
        return "running" if busy else "idle"

    def add_stops(self, job_ids: list[str]) -> None:
        self.stops.extend(job_ids)
        self.changed.notify_all()
