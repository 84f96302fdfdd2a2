"""An engine that the worker would start: its arguments, its model, and the model's properties."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from worker.engine.arguments import EngineArguments
from worker.engine.cache_plan import KvCachePlan, gpu_batch_defaults, plan_kv_cache
from worker.engine.machine import Gpu
from worker.engine.model_config import ModelShape, architectures_in, read_config, read_model_shape
from worker.engine.options.automatic import choose_tensor_parallel_size
from worker.errors import StartFailed
from worker.store import Snapshot


@dataclass(frozen=True)
class Candidate:
    """An engine that the worker would start, and its model."""

    engine: EngineArguments  # its model is a directory with at least a config.json
    snapshot: Snapshot  # on the disk or on the hub
    _plans: dict[tuple[Any, ...], KvCachePlan | StartFailed] = field(
        default_factory=dict, compare=False, repr=False
    )

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The config.json that vLLM reads, with the operator's overrides."""
        return read_config(self.engine.vllm_args)

    @property
    def architectures(self) -> list[str]:
        return architectures_in(self.config)

    @cached_property
    def shape(self) -> ModelShape | None:
        """The properties that vLLM reads from the configuration; None if it can't read them."""
        with contextlib.suppress(StartFailed):
            return read_model_shape(self.engine, self.architectures)
        return None

    @property
    def quantization_method(self) -> str:
        """The method by which the checkpoint is quantized; empty if it is not quantized."""
        # A multimodal model nests the language model's configuration in its own.
        configs = [self.config, *(one for one in self.config.values() if isinstance(one, Mapping))]
        for config in configs:
            for key in ("quantization_config", "compression_config"):
                if isinstance(section := config.get(key), Mapping):
                    method = str(section.get("quant_method") or "unknown")
                    return method.replace("_tensors", "-tensors")
        return ""

    @property
    def pipeline_stage_count(self) -> int:
        """Number of pipeline stages, which are groups of layers, each on its own GPUs."""
        return int(self.engine.vllm_args.pipeline_parallel_size)

    def gpu_count(self, tensor_parallel: int) -> int:
        """Return how many GPUs the engine needs if ``tensor_parallel`` of them share each layer."""
        return (
            tensor_parallel
            * self.pipeline_stage_count
            * int(self.engine.vllm_args.data_parallel_size)
        )

    def tensor_parallel_size(self, gpus: int = 1) -> int:
        """Return how many GPUs share each layer: as set, or as many as attention heads allow."""
        if "TENSOR_PARALLEL_SIZE" in self.engine.operator_options:
            return int(self.engine.vllm_args.tensor_parallel_size)
        heads = self.shape.attention_heads if self.shape else 0
        return choose_tensor_parallel_size(max(1, gpus // self.gpu_count(1)), heads)

    def cache_plan(self, tensor_parallel: int = 1, gpu: Gpu | None = None) -> KvCachePlan:
        """Return vLLM's cache plan for the model; it is computed once for GPUs of the same kind.

        ``tensor_parallel`` GPUs, or processes on a CPU, share every layer. ``gpu`` is one of the
        GPUs; None for this machine's. ``StartFailed`` means that vLLM refuses the model,
        ``MachineUnfit`` that it can't build the model on this machine.
        """
        key = tensor_parallel, gpu and gpu_batch_defaults(gpu)
        if key not in self._plans:
            try:
                self._plans[key] = plan_kv_cache(
                    self.engine, self.architectures, tensor_parallel, gpu
                )
            except StartFailed as error:
                self._plans[key] = error
        cache_plan = self._plans[key]
        if isinstance(cache_plan, StartFailed):
            raise cache_plan
        return cache_plan
