"""Measures and logs the duration of each phase of a startup."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar

log = logging.getLogger(__name__)

# Functions to call with the name of the current phase whenever it changes; "" between two phases.
listeners: list[Callable[[str], None]] = []
_current_phase = ContextVar("phase", default="")


@contextlib.contextmanager
def log_phase(name: str) -> Iterator[None]:
    """Log the duration of a phase unless it fails; notify the listeners of its start and end."""
    started_at = time.monotonic()
    outer = _current_phase.set(name)
    _notify_listeners()
    try:
        yield
    finally:
        _current_phase.reset(outer)
        _notify_listeners()
    log.info("start-up: %-8s %5.2f s", name, time.monotonic() - started_at)


def _notify_listeners() -> None:
    for listener in listeners:
        listener(_current_phase.get())
