"""The start of this process, which nothing should slow down, and what it does before its exit."""

import contextlib
import gc
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cpuinfo

log = logging.getLogger(__name__)

CPUINFO = Path("/proc/cpuinfo")
# Number of new objects after which garbage is collected. Python's default of 700 makes a request
# with many values, which creates an object for each, three times as slow.
COLLECT_AFTER = 10_000
# Seconds for all functions that run before the exit. The platform may kill an exiting worker at any
# time.
EXIT_TIMEOUT_S = 2.0

# Set when the exit begins: it kills the engines' cores, which are then not replaced.
exiting = threading.Event()
_exit_functions: list[Callable[[], None]] = []


@contextlib.contextmanager
def log_phase(name: str) -> Iterator[None]:
    """Log the duration of a phase, unless it fails."""
    started_at = time.monotonic()
    yield
    log.info("start-up: %-8s %5.2f s", name, time.monotonic() - started_at)


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


def skip_processor_benchmark() -> None:
    """Make the SDK read the processor's name from the kernel.

    Before version 2.0 the SDK reads the name when it is imported. It uses only the name, but the
    cpuinfo library, which it calls, also starts a process that counts clock ticks for a second. At
    that time the engine's startup needs the processor:
    https://github.com/workhorsy/py-cpuinfo/issues/155

    This function is not in ``job_loop/sdk.py`` with the other replacements because it must run
    before the SDK is imported, and importing the job loop would delay the engine's startup by a
    second.
    """
    cpuinfo.get_cpu_info = cpu_info_with_name_only


def cpu_info_with_name_only(source: Path = CPUINFO) -> dict[str, str]:
    """Return the processor's name under cpuinfo's key for it; an empty dict if it has no name."""
    for line in source.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return {"brand_raw": value.strip()}
    return {}


def call_at_exit(function: Callable[[], None]) -> None:
    """Call a function, which saves what is only in memory, before this process exits."""
    _exit_functions.append(function)


def call_exit_functions() -> None:
    """Call all functions concurrently, and wait for them for at most ``EXIT_TIMEOUT_S``."""
    threads = [threading.Thread(target=function, daemon=True) for function in _exit_functions]
    deadline = time.monotonic() + EXIT_TIMEOUT_S
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
