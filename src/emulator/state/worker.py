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

    def send_signal(self, number: signal.Signals) -> None: ...


@dataclass(slots=True, eq=False)
class Worker:
    """State of a worker that the platform knows, with counts of its calls."""

    id: str
    ready: bool = False  # it started and requests jobs, or the load balancer's last ping got 200
    has_failed_start: bool = False  # it requests jobs only to answer why its startup failed
    unhealthy: bool = False  # its ping reports so, its startup failed, or it exited during startup
    starts: int = 0  # starts of its process
    process: Process | None = None  # None if none runs or the emulator didn't start it
    pending_stops: list[str] = field(default_factory=list)  # ids of cancelled jobs, not sent yet
    pings: int = 0
    takes: int = 0  # requests for jobs
    jobs: int = 0  # delivered jobs
    chunks: int = 0  # stream posts
    results: int = 0
    late_posts: int = 0  # chunks and results of a job that had already ended
    late_chunks: int = 0  # chunks of a job that had already completed or failed
    frozen: bool = False  # its processes are paused with SIGSTOP, and its requests are reset
    thaw_timer: asyncio.TimerHandle | None = None
    connections: WeakSet[asyncio.BaseTransport] = field(default_factory=WeakSet)
    changed: Condition = field(default_factory=Condition)

    def state(self, *, busy: bool) -> str:
        """Return the key under which /health counts the worker."""
        if self.unhealthy:
            return "unhealthy"
        if not self.ready:
            return "initializing"
        return "running" if busy else "idle"

    def add_pending_stops(self, job_ids: list[str]) -> None:
        self.pending_stops.extend(job_ids)
        self.changed.notify_all()
