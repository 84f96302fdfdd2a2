"""The conditions under which all sides run: options of the engine, and variables."""

from typing import Any

import bench  # noqa: F401 - makes src importable

from proof.measure.sides import Conditions

# The same engine for all sides, without compilation, and with the same size of the KV cache.
ENGINE: dict[str, Any] = {
    "dtype": "float16",
    "max_model_len": 1024,
    "max_num_seqs": 256,
    "enforce_eager": True,
}
CACHE = {"VLLM_CPU_KVCACHE_SPACE": "1"}

# By the name of `--conditions`.
CONDITIONS = {
    # One process in addition to the core. The worker still logs a line per request.
    "one-thread": Conditions(
        {**ENGINE, "distributed_executor_backend": "uni"},
        {
            **CACHE,
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "OMP_NUM_THREADS": "1",
        },
        "one thread a side",
        ("--disable-uvicorn-access-log",),
    ),
    "default": Conditions(ENGINE, CACHE, "each side's own threads, processes and log"),
}
