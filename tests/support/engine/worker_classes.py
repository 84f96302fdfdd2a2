"""Worker classes of cores, for WORKER_CLS, that run out of memory, hang or are slow."""

import ctypes
import os
import time
from pathlib import Path

import torch

from worker.engine.seam.cpu_worker import CPUWorker

# Variable with the path of a file that exists while the memory is full.
FULL_MARKER = "TEST_MEMORY_IS_FULL"


class OutOfMemoryOnce(CPUWorker):
    """Fails once like vLLM's worker on a GPU whose memory is full, then has enough memory."""

    def load_model(self, **kwargs: object) -> None:
        """Fail the first time, load the model the second time."""
        full = Path(os.environ[FULL_MARKER])
        if full.exists():
            full.unlink()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        super().load_model(**kwargs)


# Seconds that the slow worker takes, and seconds between two lines of its output.
SLOW_S = 12.0
OUTPUT_INTERVAL_S = 0.5


class HangingSecondCore(OutOfMemoryOnce):
    """Hangs while the second core loads the model; the second core is not forked."""

    def load_model(self, **kwargs: object) -> None:
        """Fail the first time, hang the second time."""
        super().load_model(**kwargs)
        time.sleep(1e6)


class LockHoldingCore(CPUWorker):
    """Hangs in C without releasing the interpreter's lock."""

    def load_model(self, **_: object) -> None:
        """Hang."""
        ctypes.PyDLL(None).pause()


class SlowCore(CPUWorker):
    """Loads the model slowly, and prints lines in the meantime."""

    def load_model(self, **kwargs: object) -> None:
        """Load the model after some seconds."""
        until = time.monotonic() + SLOW_S
        while time.monotonic() < until:
            os.write(1, b"still waiting for what comes in the end\n")
            time.sleep(OUTPUT_INTERVAL_S)
        super().load_model(**kwargs)
