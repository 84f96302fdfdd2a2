"""An engine that the worker would start: its arguments, its model, and the model's properties."""

import contextlib
import json
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from worker.doctor.findings import Finding
from worker.engine.arguments import EngineArguments
from worker.engine.cache_plan import KvCachePlan, gpu_batch_defaults, plan_kv_cache
from worker.engine.machine import Gpu
from worker.engine.model_config import (
    ModelShape,
    ModelSupport,
    create_yarn_overrides,
    find_model_support,
    read_model_shape,
)
from worker.engine.options.automatic import choose_tensor_parallel_size
from worker.errors import StartFailed
from worker.settings.values import is_directory
from worker.store import Artifact, ArtifactKind, Snapshot
from worker.store.files import CONFIG

PartResults = Mapping[Artifact, Snapshot | Finding]


@dataclass(frozen=True)
class Candidate:
    """An engine that the worker would start, and its model.

    Attributes:
        engine: The engine's arguments.
        snapshot: The model's files, on the disk or on the hub.
        config: The model's config.json, with the operator's overrides.
        architectures: The architectures in ``config``.
        support: How vLLM supports the model's architecture.
        parts: Snapshots of the engine's other artifacts, or findings on why they are missing.
        shape: The properties that vLLM reads from the configuration; None if it can't read them.
    """

    engine: EngineArguments
    snapshot: Snapshot
    config: Mapping[str, Any]
    architectures: list[str]
    support: ModelSupport
    parts: PartResults
    shape: ModelShape | None = None
    _plans: dict[tuple[Any, ...], KvCachePlan | StartFailed] = field(
        default_factory=dict, compare=False, repr=False
    )

    @classmethod
    def from_snapshot(
        cls, engine: EngineArguments, snapshot: Snapshot, parts: PartResults = MappingProxyType({})
    ) -> Self:
        """Create a candidate; read its ``shape`` only if vLLM can run the model at all."""
        overrides = engine.vllm_args.hf_overrides
        config = {**snapshot.config, **(overrides if isinstance(overrides, Mapping) else {})}
        listed = config.get("architectures")
        names = [str(name) for name in listed] if isinstance(listed, list) else []
        model_support = find_model_support(names, config, engine.vllm_args.model_impl)
        candidate = cls(engine, snapshot, config, names, model_support, parts)
        if not config or (names and not candidate.is_runnable):
            return candidate
        with contextlib.suppress(StartFailed), candidate._arguments_with_local_model() as arguments:
            return replace(candidate, shape=read_model_shape(arguments, names))
        return candidate

    @property
    def vllm_arguments(self) -> Namespace:
        """The part of the engine's arguments that is passed to vLLM."""
        return self.engine.vllm_args

    @property
    def is_runnable(self) -> bool:
        """Whether vLLM has code for the model's architecture and is allowed to run it."""
        if self.support is ModelSupport.CODE:
            return bool(self.vllm_arguments.trust_remote_code)
        return self.support is not ModelSupport.NONE

    @property
    def has_route(self) -> bool:
        """Whether a route of the worker can use the model; True if that is unknown."""
        return self.shape is None or self.shape.is_served

    @property
    def is_on_disk(self) -> bool:
        """Whether the model's files are on the disk; else its config.json is known from the hub."""
        return (self.snapshot.directory / CONFIG).is_file()

    @property
    def has_tokenizer(self) -> bool:
        """Whether the tokenizer that the engine would load is on the disk."""
        items = [item for part, item in self.parts.items() if part.kind is ArtifactKind.TOKENIZER]
        if not items:
            return self.is_on_disk and not self.snapshot.not_downloaded
        return all(isinstance(item, Snapshot) and not item.not_downloaded for item in items)

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
        return int(self.vllm_arguments.pipeline_parallel_size)

    def gpu_count(self, tensor_parallel: int) -> int:
        """Return how many GPUs the engine needs if ``tensor_parallel`` of them share each layer."""
        return (
            tensor_parallel
            * self.pipeline_stage_count
            * int(self.vllm_arguments.data_parallel_size)
        )

    def tensor_parallel_size(self, gpus: int = 1) -> int:
        """Return how many GPUs share each layer: as set, or as many as attention heads allow."""
        if "TENSOR_PARALLEL_SIZE" in self.engine.operator_options:
            return int(self.vllm_arguments.tensor_parallel_size)
        heads = self.shape.attention_heads if self.shape else 0
        return choose_tensor_parallel_size(max(1, gpus // self.gpu_count(1)), heads)

    def cache_plan(self, tensor_parallel: int = 1, gpu: Gpu | None = None) -> KvCachePlan:
        """Return vLLM's cache plan for the model; it is computed once for GPUs of the same kind.

        Args:
            tensor_parallel: Number of GPUs, or of processes on a CPU, that share every layer.
            gpu: One of the GPUs; None for this machine's.

        Raises:
            StartFailed: vLLM refuses the model, or (MachineUnfit) can't build it on this machine.
        """
        key = tensor_parallel, gpu and gpu_batch_defaults(gpu)
        if key not in self._plans:
            try:
                with self._arguments_with_local_model() as engine:
                    self._plans[key] = plan_kv_cache(
                        engine, self.architectures, tensor_parallel, gpu
                    )
            except StartFailed as error:
                self._plans[key] = error
        cache_plan = self._plans[key]
        if isinstance(cache_plan, StartFailed):
            raise cache_plan
        return cache_plan

    def propose_yarn(self, gpu: Gpu | None = None) -> str:
        """Propose HF_OVERRIDES for a MAX_MODEL_LEN beyond the model's own; blank if impossible.

        The model is built with them, because the code of some models ignores them. ``gpu`` is one
        of the GPUs; None for this machine's.
        """
        length = int(self.vllm_arguments.max_model_len)
        with contextlib.suppress(StartFailed):
            with self._arguments_with_local_model() as engine:
                overrides = create_yarn_overrides(engine, length)
            if not overrides:
                return ""
            engine = self.engine.with_options(hf_overrides=overrides)
            plan = Candidate.from_snapshot(engine, self.snapshot, self.parts).cache_plan(1, gpu)
            if plan.rope_factors and plan.default_context_length >= length:
                # Without spaces, the value is not broken into lines.
                value = json.dumps(overrides, separators=(",", ":"))
                effect = "for YaRN, which may make answers to short texts worse"
                return f"\nor set {self.engine.prefix}HF_OVERRIDES={value} {effect}"
        return ""

    @property
    def hub_offline_options(self) -> dict[str, Any]:
        """Options to change so that vLLM sends no requests to the hub."""
        changed: dict[str, Any] = {}
        if not self.is_on_disk:
            # The repository's code is not on the disk.
            changed["trust_remote_code"] = False
        if not is_directory(self.vllm_arguments.hf_config_path or ""):
            changed["hf_config_path"] = None
        return changed

    @contextlib.contextmanager
    def _arguments_with_local_model(self) -> Iterator[EngineArguments]:
        """Yield the engine's arguments with ``model_or_config_directory`` as the model."""
        with model_or_config_directory(self.snapshot) as path:
            yield self.engine.with_options(model=path, tokenizer=path, **self.hub_offline_options)


@contextlib.contextmanager
def model_or_config_directory(snapshot: Snapshot) -> Iterator[str]:
    """Yield a model's directory; if it isn't on the disk, a temporary one with its config.json.

    Raises:
        StartFailed: The block's error, with the model's name in place of the temporary directory.
    """
    if (snapshot.directory / CONFIG).is_file():
        yield str(snapshot.directory)
        return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / CONFIG).write_text(json.dumps(snapshot.config))
        try:
            yield folder
        except StartFailed as error:
            raise type(error)(error.message.replace(folder, snapshot.model)) from error
