"""Keeps the garbage collector away from what is built once and lasts as long as the process."""

import contextlib
import gc
import os
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Collect nothing in this block, and never look at what it has built.

    Imports make half a million objects, and hardly any garbage. A collector that goes through all
    of them again and again takes a sixth of the time; later, each of its rounds would halt every
    stream for a third of a second, and copy the memory that a fork shares with this process.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


def collect_in_forks() -> None:
    """Let the next forks collect their own garbage, but not look at what they share."""
    gc.freeze()
    os.register_at_fork(after_in_child=gc.enable)
