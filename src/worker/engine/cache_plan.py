"""Plans a model's KV cache with vLLM's own layers, also for GPUs that this machine doesn't have.

The layers are built as at startup, but without memory for their weights (PyTorch's *meta* device).
This takes a second. Each layer then reports the cache that it needs. vLLM's core calculates the
number of blocks and the maximum context length from that, as at startup. None of its rules are
copied here.

The layers of a model for GPUs are built with the kernels of this machine, which may be CPU kernels.
Only the layers depend on them: the configuration, block sizes and batch sizes are those of a GPU.
"""

import contextlib
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from worker.engine.arguments import EngineArguments
from worker.engine.machine import Gpu, simulate_gpu
from worker.engine.model_config import CONFIG_ERRORS, describe_vllm_error, import_model_classes
from worker.engine.seam.locations import import_from_vllm
from worker.engine.seam.patches import BATCH_DEFAULTS
from worker.errors import MachineUnfit, StartFailed

# Attention backends that replace those of this machine, without and with latent attention (MLA).
# Other backends for GPUs have blocks of the same size or larger.
_GPU_ATTENTION, _GPU_LATENT_ATTENTION = "FLASH_ATTN", "TRITON_MLA"
# Options that build a model alone: without other processes, other models, a tokenizer and GPU
# kernels.
_STANDALONE_OPTIONS: Mapping[str, Any] = {
    "attention_backend": None,
    "data_parallel_size": 1,
    "enable_expert_parallel": False,
    "enforce_eager": True,
    "kv_transfer_config": None,
    "load_format": "dummy",
    "max_model_len": None,
    "pipeline_parallel_size": 1,
    # With a parser, vLLM would read the tokenizer.
    "reasoning_parser": "",
    "skip_tokenizer_init": True,
    "speculative_config": None,
    "worker_cls": "auto",
}


@dataclass(frozen=True)
class KvCacheCapacity:
    """The capacity of a cache: ``sequences`` concurrent sequences of ``context_length`` tokens."""

    context_length: int
    sequences: float


@dataclass(frozen=True)
class KvCachePlan:
    """The cache that a model's layers need on each of the GPUs that share every layer."""

    config: Any  # vLLM's ``VllmConfig``
    specs: Mapping[str, Any]  # vLLM's cache specification of each layer, by the layer's name
    default_context_length: int  # tokens that the model is served with by default
    parameter_count: int  # weight elements on one GPU, before any quantization
    adapter_bytes: int  # approximate bytes that are reserved for adapters on one GPU
    min_capability: int  # CUDA's, for the model's quantization, such as 80 for 8.0; 0 for any
    rope_factors: frozenset[float]  # by which the layers scale the positions of tokens

    @property
    def element_bytes(self) -> int:
        """Bytes of one element in the model's data type."""
        return int(self.config.model_config.dtype.itemsize)

    @property
    def bytes_per_token(self) -> float:
        """Bytes of each further token of a long sequence; layers with a window don't contribute."""
        full_attention = import_from_vllm("FullAttentionSpec")
        unbounded_specs = [spec for spec in self.specs.values() if isinstance(spec, full_attention)]
        return float(sum(spec.page_size_bytes / spec.block_size for spec in unbounded_specs))

    def max_bytes_per_sequence(self, context_length: int) -> int:
        with self.override_context_length(context_length):
            return int(import_from_vllm("max_memory_usage_bytes")(self.config, self.specs.values()))

    def capacity(self, memory: float, context_length: int) -> KvCacheCapacity:
        """Return the capacity of a cache of ``memory`` bytes for a maximum context length.

        The context length is reduced if the cache is too small for it. Both numbers are 0 if no
        context fits.
        """
        if not self.specs:
            # The model stores nothing per sequence.
            return KvCacheCapacity(context_length, math.inf)
        with self.override_context_length(context_length):
            try:
                cache = self._kv_cache_config(memory)
            except ValueError:
                return KvCacheCapacity(0, 0.0)
            sequences = import_from_vllm("get_max_concurrency_for_kv_cache_config")(
                self.config, cache
            )
            concurrent_sequences = min(float(sequences), self.config.scheduler_config.max_num_seqs)
            return KvCacheCapacity(
                int(self.config.model_config.max_model_len), concurrent_sequences
            )

    def fit_context_length(self, memory: float, requested: int | None) -> int:
        """Return the context length that vLLM would start with, for a cache of ``memory`` bytes.

        ``requested`` is a context length; None for the longest that fits. If the cache is too small
        for it, the ``ValueError`` has vLLM's message, as at startup.
        """
        with self.override_context_length(
            requested or self.default_context_length, can_shrink=requested is None
        ):
            self._kv_cache_config(memory)
            return int(self.config.model_config.max_model_len)

    def _kv_cache_config(self, memory: float) -> Any:
        """Return vLLM's configuration of a cache; raises ValueError if the memory is too small."""
        configure = import_from_vllm("get_kv_cache_configs")
        specs = [dict(self.specs)]
        # Before vLLM 0.33, the function groups the layers itself.
        group = getattr(sys.modules[configure.__module__], "get_global_kv_cache_groups", None)
        groups = [group(self.config, specs)] if group else []
        cache, *_ = configure(self.config, specs, [int(memory)], *groups)
        return cache

    @contextlib.contextmanager
    def override_context_length(
        self, context_length: int, *, can_shrink: bool = True
    ) -> Iterator[None]:
        """Set the maximum context length during the block; vLLM may reduce it if ``can_shrink``."""
        model = self.config.model_config
        original = model.max_model_len, model.original_max_model_len
        model.max_model_len = context_length
        model.original_max_model_len = -1 if can_shrink else context_length
        try:
            yield
        finally:
            model.max_model_len, model.original_max_model_len = original


def gpu_batch_defaults(gpu: Gpu) -> tuple[int, int]:
    """Return vLLM's defaults for a GPU: the tokens per batch and the concurrent sequences."""
    with simulate_gpu(gpu, as_cuda=True):
        tokens, sequences = import_from_vllm("AsyncEngineArgs").get_batch_defaults(1)
    usage = import_from_vllm("UsageContext").OPENAI_API_SERVER
    return tokens[usage], sequences[usage]


def plan_kv_cache(
    arguments: EngineArguments,
    architectures: Sequence[str],
    tensor_parallel_size: int,
    gpu: Gpu | None,
) -> KvCachePlan:
    """Build a model without weights and collect the cache specifications of its layers.

    The model is a directory with at least a config.json, which lists the architectures.
    ``tensor_parallel_size`` GPUs share every layer. ``gpu`` is a GPU that this machine doesn't
    have; None to plan for this machine.

    Raises:
        StartFailed: vLLM refuses the model, or the arguments for it.
        MachineUnfit: vLLM can't build the model on this machine, for example without a kernel.
    """
    usage = import_from_vllm("UsageContext").OPENAI_API_SERVER
    with simulate_gpu(gpu) if gpu else contextlib.nullcontext():
        try:
            import_model_classes(architectures)
            engine_args = _standalone_engine_args(arguments, tensor_parallel_size)
            if gpu:
                tokens, sequences = gpu_batch_defaults(gpu)
                BATCH_DEFAULTS.replace(
                    engine_args, lambda *_: ({usage: tokens}, {usage: sequences})
                )
            config = engine_args.create_engine_config(usage)
        except CONFIG_ERRORS as error:
            raise StartFailed(describe_vllm_error(error)) from error
        try:
            return _build_cache_plan(config, tensor_parallel_size, is_for_gpu=gpu is not None)
        except (LookupError, ValueError) as error:
            raise StartFailed(f"{type(error).__name__}: {describe_vllm_error(error)}") from error
        except CONFIG_ERRORS as error:
            raise MachineUnfit(describe_vllm_error(error)) from error


def lacks_data(error: Exception) -> bool:
    """Return whether an error is about layers without data, whose values a model's code reads."""
    return "meta" in str(error)


def _standalone_engine_args(arguments: EngineArguments, tensor_parallel_size: int) -> Any:
    """Return vLLM's arguments for building a model in this process, without its other parts."""
    # vLLM would choose the same backend, but would count the GPUs first.
    backend = "mp" if tensor_parallel_size > 1 else None
    options = arguments.with_options(
        **_STANDALONE_OPTIONS,
        tensor_parallel_size=tensor_parallel_size,
        distributed_executor_backend=backend,
    )
    return import_from_vllm("AsyncEngineArgs").from_cli_args(options.vllm_args)


@contextlib.contextmanager
def build_undivided_model(arguments: EngineArguments) -> Iterator[Any]:
    engine_args = _standalone_engine_args(arguments, tensor_parallel_size=1)
    usage = import_from_vllm("UsageContext").OPENAI_API_SERVER
    with _build_layers(engine_args.create_engine_config(usage), 1) as layers:
        yield layers


@contextlib.contextmanager
def _build_layers(config: Any, tensor_parallel_size: int) -> Iterator[Any]:
    """Build a model's layers without memory for weights; vLLM's current configuration is theirs."""
    with (
        import_from_vllm("set_current_vllm_config")(config),
        _join_tensor_parallel_group(tensor_parallel_size),
    ):
        dtype = torch.get_default_dtype()
        torch.set_default_dtype(config.model_config.dtype)
        try:
            layers = _initialize_without_memory(config)
        finally:
            torch.set_default_dtype(dtype)
        yield layers


def _initialize_without_memory(config: Any) -> Any:
    initialize = import_from_vllm("initialize_model")
    try:
        with torch.device("meta"):
            return initialize(config)
    # The code of a model may raise anything.
    except Exception as error:
        if not lacks_data(error):
            raise
    # A model's code reads values that it has computed, such as the slopes of ALiBi.
    config.compilation_config.static_forward_context.clear()
    with _WeightsWithoutMemory():
        return initialize(config)


class _WeightsWithoutMemory(TorchFunctionMode):
    """Creates only tensors without a value, such as weights, without memory."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.empty and kwargs.get("device") is None:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def _build_cache_plan(config: Any, tensor_parallel_size: int, *, is_for_gpu: bool) -> KvCachePlan:
    model = config.model_config
    method = model.quantization
    min_capability = (
        import_from_vllm("get_quantization_config")(method).get_min_capability() if method else 0
    )
    # The cache does not depend on the quantization, whose kernels may require a GPU.
    config.quant_config = None
    with _build_layers(config, tensor_parallel_size) as layers:
        if is_for_gpu:
            # With the backends of GPUs, layers have the block sizes of GPUs.
            for layer in config.compilation_config.static_forward_context.values():
                if hasattr(layer, "attn_backend"):
                    name = _GPU_LATENT_ATTENTION if layer.attn_backend.is_mla() else _GPU_ATTENTION
                    layer.attn_backend = import_from_vllm("AttentionBackendEnum")[name].get_class()
        import_from_vllm("current_platform").update_block_size_for_backend(config)
        specs = import_from_vllm("get_kv_cache_spec")(config)
        layouts = [layout.name for layout in import_from_vllm("KVCacheLayout")]
        import_from_vllm("resolve_kv_cache_layout")(config, [layouts], specs.values())
    parameter_count = sum(parameter.numel() for parameter in layers.parameters())
    adapter_bytes = _count_adapter_bytes(layers, config.lora_config, model.dtype.itemsize)
    rope_factors = frozenset(
        layer.scaling_factor
        for layer in layers.modules()
        if isinstance(getattr(layer, "scaling_factor", None), int | float)
    )
    return KvCachePlan(
        config=config,
        specs=specs,
        default_context_length=model.max_model_len,
        parameter_count=parameter_count,
        adapter_bytes=adapter_bytes,
        min_capability=min_capability,
        rope_factors=rope_factors,
    )


def _count_adapter_bytes(layers: Any, lora_config: Any, element_bytes: int) -> int:
    """Return the bytes of the matrices that vLLM reserves for adapters in linear layers."""
    if lora_config is None:
        return 0
    linear_layers = (
        layer for layer in layers.modules() if isinstance(layer, import_from_vllm("LinearBase"))
    )
    rows = sum(
        # Each of the layers that are merged into one has its own first matrix.
        len(getattr(layer, "output_sizes", (0,))) * layer.weight.shape[1] + layer.weight.shape[0]
        for layer in linear_layers
    )
    return int(rows * lora_config.max_lora_rank * lora_config.max_loras * element_bytes)


@contextlib.contextmanager
def _join_tensor_parallel_group(tensor_parallel_size: int) -> Iterator[None]:
    """Make this process rank 0 of a tensor parallel group whose other processes don't exist.

    Building layers only reads the rank and the size of the group: no tensor is sent.
    """
    state = import_from_vllm("parallel_state")
    with tempfile.TemporaryDirectory() as directory:
        rendezvous = (Path(directory) / "meeting").as_uri()
        state.init_distributed_environment(1, 0, rendezvous, 0, "gloo")
        try:
            state.initialize_model_parallel(1, 1)
            state.get_tp_group().world_size = tensor_parallel_size
            yield
        finally:
            state.destroy_model_parallel()
            state.destroy_distributed_environment()
