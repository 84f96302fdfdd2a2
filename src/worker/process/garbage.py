"""Excludes from garbage collection the objects that live as long as the process."""

import contextlib
import gc
import os
from collections.abc import Iterator

# Number of new objects after which garbage is collected. Python's default of 700 makes a request
# with many values, which creates an object for each, three times as slow.
COLLECT_AFTER = 10_000


@contextlib.contextmanager
def pause_and_freeze_gc() -> Iterator[None]:
    """Disable garbage collection in this block, then exclude all existing objects permanently.

    Imports create half a million objects and hardly any garbage. Scanning these objects again and
    again takes a sixth of the import time. Later, each full collection would stop every stream for
    a third of a second and copy the memory that a fork shares with this process.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(COLLECT_AFTER)
        if was_enabled:
            gc.enable()


def enable_gc_in_forks() -> None:
    """Enable garbage collection in later forks, but not of objects shared with this process."""
    gc.freeze()
    os.register_at_fork(after_in_child=gc.enable)
