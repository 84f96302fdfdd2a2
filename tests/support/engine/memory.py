"""A core's worker that finds the memory full in the first core that starts; named in WORKER_CLS."""

import os
from pathlib import Path

import torch

from worker.engine.seam.cpu_worker import CPUWorker

# In the environment: a file that is there while the memory is full.
FULL = "TEST_MEMORY_IS_FULL"


class FullOnce(CPUWorker):
    """Fails as vLLM's does on a GPU whose memory is full; then there is room."""

    def load_model(self, **kwargs: object) -> None:
        """Load the model, the second time."""
        full = Path(os.environ[FULL])
        if full.exists():
            full.unlink()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        super().load_model(**kwargs)
