"""Limits how many lines of batches are in the engine: fewer while there are other requests."""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Iterator

# Divisor of the capacity for batches while there are other requests.
BUSY_DIVISOR = 32
# Seconds after the last other request during which more are expected: occasional requests must not
# find the engine full each time.
QUIET_S = 5.0


class SlotWindow:
    """The engine slots that all batches of a worker share. Use on one event loop.

    Args:
        capacity: Maximum number of concurrent lines.
        count_other_requests: Returns how many other requests are running; callable from any thread.
    """

    def __init__(self, capacity: int, count_other_requests: Callable[[], int]) -> None:
        self._capacity = capacity
        self._busy_capacity = max(1, capacity // BUSY_DIVISOR)
        self._count_other_requests = count_other_requests
        self._busy_at = -math.inf
        self._running = 0
        self._events: list[asyncio.Event] = []

    @property
    def free_slot_count(self) -> int:
        """Number of lines that may begin. If it is negative, that many lines must be aborted."""
        now = time.monotonic()
        if self._count_other_requests():
            self._busy_at = now
        capacity = self._busy_capacity if now - self._busy_at < QUIET_S else self._capacity
        return capacity - self._running

    @contextlib.contextmanager
    def set_on_change(self, event: asyncio.Event) -> Iterator[None]:
        """Set an event in the block whenever lines may begin or must be aborted.

        The end of ``QUIET_S`` sets no event.
        """
        self._events.append(event)
        try:
            yield
        finally:
            self._events.remove(event)

    def take_slot(self) -> None:
        self._running += 1

    def free_slot(self) -> None:
        self._running -= 1
        self._set_events()

    def note_other_request(self) -> None:
        """Leave slots to a request that begins, and to more of its kind."""
        self._busy_at = time.monotonic()
        if self._running > self._busy_capacity:
            self._set_events()

    def _set_events(self) -> None:
        for event in self._events:
            event.set()
