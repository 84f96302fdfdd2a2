"""Freezes workers, as a platform may do with idle ones, and thaws them."""

import asyncio
import signal

from emulator.http.connections import reset
from emulator.state.worker import Worker


def freeze(worker: Worker, seconds: float) -> None:
    """Stop all of a worker's processes for so many seconds, and reset its connections.

    Its jobs stay in progress. While it is frozen already, the time begins anew.

    Raises:
        ProcessLookupError: the emulator has no process of this worker.
    """
    if worker.process is None:
        raise ProcessLookupError(f"{worker.id} is not run by this endpoint")
    worker.frozen = True  # before the signal: what has just arrived is not answered any more
    worker.process.signal(signal.SIGSTOP)
    for transport in list(worker.connections):
        reset(transport)
    if worker.thaw_timer is not None:
        worker.thaw_timer.cancel()
    worker.thaw_timer = asyncio.get_running_loop().call_later(seconds, thaw, worker)


def thaw(worker: Worker) -> None:
    """Let a frozen worker go on; has no effect on another."""
    if worker.thaw_timer is not None:
        worker.thaw_timer.cancel()
    if worker.frozen:
        worker.frozen = False
        if worker.process is not None:
            worker.process.signal(signal.SIGCONT)
        worker.changed.notify_all()
