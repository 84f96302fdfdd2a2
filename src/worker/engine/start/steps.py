"""Startup steps, each of which returns a changed copy of an engine's arguments."""

import copy
from dataclasses import replace
from typing import Any

from worker.engine.arguments import EngineArguments
from worker.engine.model_config import create_model_config
from worker.engine.options.automatic import choose_tensor_parallel_size
from worker.engine.start import Start
from worker.engine.start.artifacts import artifacts_in_arguments
from worker.store import Artifact, ArtifactKind, ArtifactLocation, Origin

RENDERER_NUM_WORKERS = "RENDERER_NUM_WORKERS"
TENSOR_PARALLEL_SIZE = "TENSOR_PARALLEL_SIZE"


def with_artifact_directories(arguments: EngineArguments, start: Start) -> EngineArguments:
    """Replace repositories by the directories of their files; add the model's origin and commit."""
    for artifact in artifacts_in_arguments(arguments):
        location = start.locations.get(artifact)
        if location and location.origin is not Origin.DIRECTORY:
            arguments = _replace_artifact(arguments, artifact, location)
    return arguments


def _replace_artifact(
    arguments: EngineArguments, artifact: Artifact, location: ArtifactLocation
) -> EngineArguments:
    options, path = arguments.vllm_args, str(location.directory)
    speculative_config = options.speculative_config
    if artifact.kind is ArtifactKind.ADAPTER:
        modules = [copy.copy(module) for module in options.lora_modules]
        for module in modules:
            if module.path == artifact.model:
                module.path = path
        return arguments.with_options(lora_modules=modules)
    if artifact.kind is ArtifactKind.TOKENIZER:
        return arguments.with_options(tokenizer=path)
    if artifact.setting.endswith("SPECULATIVE_CONFIG"):
        return arguments.with_options(speculative_config={**speculative_config, "model": path})
    update: dict[str, Any] = {"model": path}
    if options.tokenizer == options.model:
        update["tokenizer"] = path
    if speculative_config and speculative_config.get("model") == options.model:
        update["speculative_config"] = {**speculative_config, "model": path}
    return replace(arguments.with_options(**update), origin=location.origin, commit=location.commit)


def with_lora_enabled(arguments: EngineArguments, start: Start) -> EngineArguments:
    """Enable adapters on a worker that only trains, which reserves no memory for them."""
    return arguments.with_options(enable_lora=True) if start.only_trains else arguments


def with_tensor_parallel_size(arguments: EngineArguments, _: Start) -> EngineArguments:
    """Reduce a tensor parallel size that the worker chose to a divisor of the attention heads."""
    if all(default.name != TENSOR_PARALLEL_SIZE for default in arguments.defaults):
        return arguments
    gpus: int = arguments.vllm_args.tensor_parallel_size
    architecture = create_model_config(arguments).model_arch_config
    size = choose_tensor_parallel_size(gpus, architecture.total_num_attention_heads)
    if size == gpus:
        return arguments
    reason = f"as many of {gpus} GPUs as can share its attention heads"
    return arguments.with_chosen_value(TENSOR_PARALLEL_SIZE, size, reason)


def with_renderer_workers(arguments: EngineArguments, _: Start) -> EngineArguments:
    """Make vLLM tokenize in two threads, so that a long text leaves one thread free.

    The arguments stay the same if the operator has set the number, without a tokenizer, and for
    multimodal pooling models, whose cache is not thread-safe.
    """
    if RENDERER_NUM_WORKERS in arguments.operator_options:
        return arguments
    config = create_model_config(arguments)
    is_multimodal_pooling = config.runner_type == "pooling" and config.multimodal_config
    if config.skip_tokenizer_init or is_multimodal_pooling:
        return arguments
    return arguments.with_chosen_value(RENDERER_NUM_WORKERS, 2, "one of them is free of long texts")


def with_same_context_length(arguments: EngineArguments) -> EngineArguments:
    """Use a dead core's context length for the new core, which retries the dead core's requests."""
    return arguments.with_options(max_model_len=arguments.config.model_config.max_model_len)
