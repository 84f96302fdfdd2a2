"""Functions that run before this process exits, to send or write data that is only in memory."""

import threading
import time
from collections.abc import Callable

# Seconds for all functions together. The platform may kill an exiting worker at any time.
TIMEOUT_S = 2.0

_functions: list[Callable[[], None]] = []


def call_at_exit(function: Callable[[], None]) -> None:
    """Call a function when this process exits, unless it is killed."""
    _functions.append(function)


def call_functions() -> None:
    """Call all functions concurrently, and wait for them for at most ``TIMEOUT_S``."""
    threads = [threading.Thread(target=function, daemon=True) for function in _functions]
    deadline = time.monotonic() + TIMEOUT_S
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
