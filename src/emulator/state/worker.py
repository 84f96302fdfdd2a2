"""A worker, as the platform sees it."""

import signal
from dataclasses import dataclass, field
from typing import Protocol

from emulator.state.condition import Condition


class Process(Protocol):
    """The process of a worker that the emulator started."""

    @property
    def pid(self) -> int: ...

    def signal(self, number: signal.Signals) -> None: ...


@dataclass(slots=True, eq=False)
class Worker:
    """A worker that the platform has heard of."""

    id: str
    ready: bool = False  # it has asked for a job since its process started
    unhealthy: bool = False  # its ping said so, or it exited before it was ready
    starts: int = 0  # of its process
    process: Process | None = None  # None: not started by the emulator, or not running
    stops: list[str] = field(default_factory=list)  # ids of cancelled jobs, not yet sent to it
    pings: int = 0
    changed: Condition = field(default_factory=Condition)

    def state(self, *, busy: bool) -> str:
        """Return the word under which /health counts it."""
        if self.unhealthy:
            return "unhealthy"
        if not self.ready:
            return "initializing"
        return "running" if busy else "idle"

    def take_stops(self) -> list[str]:
        stops, self.stops = self.stops, []
        return stops

    def add_stops(self, job_ids: list[str]) -> None:
        self.stops.extend(job_ids)
        self.changed.notify_all()
