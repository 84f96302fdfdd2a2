"""A model in the words of the rest of the worker, out of vLLM's configuration."""

from pathlib import Path
from typing import Any

from worker.engine import Model
from worker.engine.arguments import EngineArguments
from worker.engine.options.combinations import text_of
from worker.engine.run.requests.media import hosts


def described(arguments: EngineArguments, config: Any, tasks: frozenset[str]) -> Model:
    """Describe a model.

    Args:
        arguments: that its engine is started with.
        config: vLLM's, made of them.
        tasks: vLLM's supported ones.
    """
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


def _directory(name: str) -> Path | None:
    return Path(name) if Path(name).is_dir() else None
