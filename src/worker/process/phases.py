"""The phases of a start, logged with their seconds."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar

log = logging.getLogger(__name__)

# Called with the name of the phase that a start is in, whenever it changes; "" between phases.
listeners: list[Callable[[str], None]] = []
_current = ContextVar("phase", default="")


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Log how long a phase took, unless it fails."""
    begun = time.monotonic()
    outer = _current.set(name)
    _tell()
    try:
        yield
    finally:
        _current.reset(outer)
        _tell()
    log.info("start-up: %-8s %5.2f s", name, time.monotonic() - begun)


def _tell() -> None:
    for listener in listeners:
        listener(_current.get())
