"""The phases of a start, logged with their seconds."""

import contextlib
import logging
import time
from collections.abc import Iterator

log = logging.getLogger(__name__)


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Log how long a phase took, unless it fails."""
    begun = time.monotonic()
    yield
    log.info("start-up: %-8s %5.2f s", name, time.monotonic() - begun)
