"""The conditions under which all sides run: options of the engine, and variables."""

from dataclasses import dataclass
from typing import Any

# The same engine for all sides, without compilation, and with the same size of the KV cache.
ENGINE: dict[str, Any] = {
    "dtype": "float16",
    "max_model_len": 1024,
    "max_num_seqs": 256,
    "enforce_eager": True,
}
CACHE = {"VLLM_CPU_KVCACHE_SPACE": "1"}
# Without the options above, the engine is compiled and has CUDA graphs.
GPU_ENGINE: dict[str, Any] = {
    "max_model_len": 4096,
    "max_num_seqs": 256,
    "gpu_memory_utilization": 0.9,
}


@dataclass(frozen=True)
class Conditions:
    """Conditions that are the same on all sides.

    Args:
        title: Their description for the output.
        engine: Options of the engine.
        environ: Variables of the side's process.
        server_flags: Options that only vLLM's server has.
        request_factor: Factor of the requests of each load with several callers.
    """

    title: str
    engine: dict[str, Any]
    environ: dict[str, str]
    server_flags: tuple[str, ...] = ()
    request_factor: int = 1


# By the name of `--conditions`.
CONDITIONS = {
    # One process in addition to the core. The worker still logs a line per request.
    "one-thread": Conditions(
        "one thread a side",
        {**ENGINE, "distributed_executor_backend": "uni"},
        {
            **CACHE,
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "OMP_NUM_THREADS": "1",
        },
        ("--disable-uvicorn-access-log",),
    ),
    "default": Conditions("each side's own threads, processes and log", ENGINE, CACHE),
    # With a GPU, a load of the usual size would end within two seconds.
    "gpu": Conditions(
        "a GPU; each side's own threads, processes and log", GPU_ENGINE, {}, request_factor=3
    ),
}
