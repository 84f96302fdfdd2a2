"""Measures and logs the duration of each phase of a startup."""

import contextlib
import logging
import time
from collections.abc import Iterator

log = logging.getLogger(__name__)


@contextlib.contextmanager
def log_phase(name: str) -> Iterator[None]:
    """Log the duration of a phase, unless it fails."""
    started_at = time.monotonic()
    yield
    log.info("start-up: %-8s %5.2f s", name, time.monotonic() - started_at)
