"""How many lines of batches are in the engine at once: all that it has room for, or few."""

import math
import time
from collections.abc import Callable

# Of the lines that fit, the part that may be answered while others ask.
SMALL = 32
# Seconds after the last other request in which more may come: whoever asks now and then must not
# find the engine full each time.
CALM_S = 5.0


class Window:
    """The room that all batches of a worker share.

    Args:
        full: how many lines may be answered at once.
        others: returns how many other requests are being answered; from any thread.
    """

    def __init__(self, full: int, others: Callable[[], int]) -> None:
        self._full = full
        self._few = max(1, full // SMALL)
        self._others = others
        self._busy_at = -math.inf
        self.running = 0

    @property
    def room(self) -> int:
        """How many further lines may begin; below 0, how many have to make room for others."""
        now = time.monotonic()
        if self._others():
            self._busy_at = now
        return (self._few if now - self._busy_at < CALM_S else self._full) - self.running
