"""The platform's documented limits of requests: callers wait instead of being refused."""

import threading
import time
from collections.abc import Mapping

WINDOW_S = 10.0
# Requests of an endpoint in that time.
DOCUMENTED: Mapping[str, int] = {
    "run": 1000,
    "runsync": 2000,
    "stream": 2000,
    "status": 2000,
    "cancel": 100,
}
# Of those at once; what the platform takes of the slowest of them.
AT_ONCE = 400


class Rates:
    """Says how long each request has to wait; threads may share it.

    Args:
        limits: requests of each operation in ten seconds; an operation without one never waits.
    """

    def __init__(self, limits: Mapping[str, int] = DOCUMENTED) -> None:
        self._limits = limits
        self._due: dict[str, float] = {}
        self._lock = threading.Lock()

    def wait(self, operation: str) -> float:
        """Count a request; return the seconds until it may be sent."""
        if operation not in self._limits:
            return 0.0
        apart = WINDOW_S / self._limits[operation]
        now = time.monotonic()
        with self._lock:
            # So many may come at once that a second's worth is saved up.
            due = max(self._due.get(operation, 0.0), now - 1.0) + apart
            self._due[operation] = due
        return max(0.0, due - now)
