"""Steps of a start: each returns a changed copy of an engine's arguments."""

import copy
from dataclasses import replace
from typing import Any

from worker.engine.arguments import EngineArguments, StartContext
from worker.engine.model_config import create_model_config
from worker.engine.options.automatic import fitting_tensor_parallel_size
from worker.engine.start.needs import wanted_by_arguments
from worker.store import Found, Kind, Origin, Wanted

RENDERERS = "RENDERER_NUM_WORKERS"
TENSOR = "TENSOR_PARALLEL_SIZE"


def with_directories(arguments: EngineArguments, context: StartContext) -> EngineArguments:
    """Replace the names of repositories in an engine's arguments by directories."""
    for wanted in wanted_by_arguments(arguments):
        found = context.found.get(wanted)
        if found and found.origin is not Origin.DIRECTORY:
            arguments = _put(arguments, wanted, found)
    return arguments


def _put(arguments: EngineArguments, wanted: Wanted, found: Found) -> EngineArguments:
    options, place = arguments.vllm, str(found.place)
    draft = options.speculative_config
    if wanted.kind is Kind.ADAPTER:
        modules = [copy.copy(module) for module in options.lora_modules]
        for module in modules:
            if module.path == wanted.model:
                module.path = place
        return arguments.with_options(lora_modules=modules)
    if wanted.kind is Kind.TOKENIZER:
        return arguments.with_options(tokenizer=place)
    if wanted.setting.endswith("SPECULATIVE_CONFIG"):
        return arguments.with_options(speculative_config={**draft, "model": place})
    changed: dict[str, Any] = {"model": place}
    if options.tokenizer == options.model:
        changed["tokenizer"] = place
    if draft and draft.get("model") == options.model:
        changed["speculative_config"] = {**draft, "model": place}
    return replace(arguments.with_options(**changed), origin=found.origin, commit=found.commit)


def with_adapters(arguments: EngineArguments, context: StartContext) -> EngineArguments:
    """Enable adapters on a worker that only trains them: without an engine that costs nothing."""
    return arguments.with_options(enable_lora=True) if context.trains else arguments


def with_fitting_tensor_parallel_size(
    arguments: EngineArguments, _: StartContext
) -> EngineArguments:
    """Make a tensor parallel size that the worker chose divide the model's attention heads."""
    if all(default.name != TENSOR for default in arguments.defaults):
        return arguments
    gpus: int = arguments.vllm.tensor_parallel_size
    architecture = create_model_config(arguments).model_arch_config
    size = fitting_tensor_parallel_size(gpus, architecture.total_num_attention_heads)
    if size == gpus:
        return arguments
    reason = f"as many of {gpus} GPUs as can share its attention heads"
    return arguments.with_default(TENSOR, size, reason)


def with_renderer_workers(arguments: EngineArguments, _: StartContext) -> EngineArguments:
    """Let vLLM tokenize in two threads, so that long texts never have all of them.

    vLLM refuses several threads for models that embed or rank what they see: their cache takes one.
    """
    if RENDERERS in arguments.given:
        return arguments
    config = create_model_config(arguments)
    pools_media = config.runner_type == "pooling" and config.multimodal_config
    if config.skip_tokenizer_init or pools_media:
        return arguments
    return arguments.with_default(RENDERERS, 2, "one of them is free of long texts")


def with_same_context(arguments: EngineArguments, config: Any) -> EngineArguments:
    """Keep the context of the first core: requests that it has accepted begin again on the next."""
    return arguments.with_options(max_model_len=config.model_config.max_model_len)
