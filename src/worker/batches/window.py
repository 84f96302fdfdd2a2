"""How many lines of batches are in the engine at once: all that it has room for, or few."""

import math
import time
from collections.abc import Callable

# Of the lines that fit, the part that may begin while others ask.
SMALL = 16
# Seconds after the last other request in which more may come.
CALM_S = 0.5


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
        self.closed_at = math.inf
        self.running = 0

    def close(self) -> None:
        """Let no further line begin: the worker is being stopped. From any thread."""
        self.closed_at = time.monotonic()

    @property
    def open(self) -> bool:
        """Whether a further line may begin."""
        now = time.monotonic()
        if self._others():
            self._busy_at = now
        return self.running < (self._few if now - self._busy_at < CALM_S else self._full)
