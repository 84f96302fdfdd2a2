"""Cores' workers that hang while they load the model, or are slow; named in WORKER_CLS."""

import ctypes
import os
import time

from support.engine.memory import FullOnce
from worker.engine.seam.cpu_worker import CPUWorker

# Seconds that the slow one takes, and between two signs of its life.
SLOW_S = 12.0
SIGN_S = 0.5


class SleepsNext(FullOnce):
    """Waits for what never comes, in the second core: that one is no fork."""

    def load_model(self, **kwargs: object) -> None:
        """Fail, then wait."""
        super().load_model(**kwargs)
        time.sleep(1e6)


class HoldsLock(CPUWorker):
    """Waits in C, and keeps the interpreter's lock."""

    def load_model(self, **_: object) -> None:
        """Wait."""
        ctypes.PyDLL(None).pause()


class Slow(CPUWorker):
    """Takes its time, and says so."""

    def load_model(self, **kwargs: object) -> None:
        """Load the model, after some time."""
        until = time.monotonic() + SLOW_S
        while time.monotonic() < until:
            os.write(1, b"still waiting for what comes in the end\n")
            time.sleep(SIGN_S)
        super().load_model(**kwargs)
