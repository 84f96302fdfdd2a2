"""A worker class for WORKER_CLS that runs out of memory in the first core that starts."""

import os
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
