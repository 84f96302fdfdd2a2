"""Limits how many lines of batches are in the engine: fewer while there are other requests."""

import math
import time
from collections.abc import Callable

# Divisor of the capacity for batches while there are other requests.
BUSY_DIVISOR = 32
# Seconds after the last other request during which more are expected: occasional requests must not
# find the engine full each time.
QUIET_S = 5.0


class SlotWindow:
    """The engine slots that all batches of a worker share.

    Args:
        capacity: Maximum number of concurrent lines.
        count_other_requests: Returns how many other requests are running; callable from any thread.
    """

    def __init__(self, capacity: int, count_other_requests: Callable[[], int]) -> None:
        self._capacity = capacity
        self._busy_capacity = max(1, capacity // BUSY_DIVISOR)
        self._count_other_requests = count_other_requests
        self._busy_at = -math.inf
        self.running = 0

    @property
    def free_slot_count(self) -> int:
        """Number of lines that may begin. If it is negative, that many lines must be aborted."""
        now = time.monotonic()
        if self._count_other_requests():
            self._busy_at = now
        capacity = self._busy_capacity if now - self._busy_at < QUIET_S else self._capacity
        return capacity - self.running
