"""The KV cache that vLLM makes for a model, also on GPUs that are not here, by its own layers.

They are built as in a start, but without memory behind their weights (PyTorch's device *meta*),
which takes a second, and asked what each of them keeps of a text. How many blocks that makes, and
how long a text may be, vLLM's core calculates of it as in a start. No rule of it is copied here.

The layers of a model for GPUs are built with the kernels that are here, a CPU's. Nothing else of
the plan depends on them: the configuration, the sizes of blocks and what a batch holds are a GPU's.
"""

import contextlib
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from worker.engine.arguments import EngineArguments
from worker.engine.machine import Gpu, as_on
from worker.engine.model_config import MALFORMED, load_classes, reason
from worker.engine.seam.locations import find
from worker.engine.seam.patches import BATCH_DEFAULTS
from worker.errors import MachineUnfit, StartFailed

# What attends on GPUs, or stands for it: the others have blocks of the same size, or larger ones.
_ATTENTION, _LATENT_ATTENTION = "FLASH_ATTN", "TRITON_MLA"
# What the build does without: other processes, other models, a tokenizer, kernels of a GPU.
_ALONE: Mapping[str, Any] = {
    "attention_backend": None,
    "data_parallel_size": 1,
    "enable_expert_parallel": False,
    "enforce_eager": True,
    "kv_transfer_config": None,
    "load_format": "dummy",
    "max_model_len": None,
    "pipeline_parallel_size": 1,
    # It would read the tokenizer.
    "reasoning_parser": "",
    "skip_tokenizer_init": True,
    "speculative_config": None,
    "worker_cls": "auto",
}


@dataclass(frozen=True)
class Fitted:
    """What a cache holds: texts of ``context`` tokens, ``texts`` of them at once."""

    context: int
    texts: float


@dataclass(frozen=True)
class CachePlan:
    """What a model's layers keep of texts, on each of the GPUs that share every layer.

    Attributes:
        config: vLLM's ``VllmConfig``.
        specs: vLLM's specification of a layer's cache, by the layer's name.
        length: tokens of the longest text that the model is served with by default.
        parameters: elements of its weights on one GPU, before any quantization.
        adapters: bytes that are set aside for adapters on one GPU, about.
        capability: that vLLM wants of a GPU for the model's quantization: 80 for 8.0; 0 for any.
    """

    config: Any
    specs: Mapping[str, Any]
    length: int
    parameters: int
    adapters: int
    capability: int

    @property
    def element_bytes(self) -> int:
        """Size of an element in the type that the model computes in."""
        return int(self.config.model_config.dtype.itemsize)

    @property
    def token_bytes(self) -> float:
        """Bytes of one more token of a long text; what has a bound, such as a window, has none."""
        whole = find("FullAttentionSpec")
        growing = [spec for spec in self.specs.values() if isinstance(spec, whole)]
        return float(sum(spec.page_size_bytes / spec.block_size for spec in growing))

    def text_bytes(self, context: int) -> int:
        """Return the bytes that one text of ``context`` tokens keeps at most."""
        with self.served_with(context):
            return int(find("max_memory_usage_bytes")(self.config, self.specs.values()))

    def fitted(self, memory: float, context: int) -> Fitted:
        """Return what a cache of so many bytes holds, of texts of at most ``context`` tokens."""
        if not self.specs:
            # Nothing is kept of a text.
            return Fitted(context, math.inf)
        with self.served_with(context):
            try:
                cache = self._cache(memory)
            except ValueError:
                return Fitted(0, 0.0)
            texts = find("get_max_concurrency_for_kv_cache_config")(self.config, cache)
            at_once = min(float(texts), self.config.scheduler_config.max_num_seqs)
            return Fitted(int(self.config.model_config.max_model_len), at_once)

    def context(self, memory: float, asked: int | None) -> int:
        """Return the context of a start with a cache of so many bytes; None: the longest that fits.

        Raises:
            ValueError: the cache is too small for it; in vLLM's words, as in a start.
        """
        with self.served_with(asked or self.length, or_less=asked is None):
            self._cache(memory)
            return int(self.config.model_config.max_model_len)

    def _cache(self, memory: float) -> Any:
        """Return vLLM's configuration of a cache of so many bytes.

        Raises:
            ValueError: it is too small.
        """
        cache, *_ = find("get_kv_cache_configs")(self.config, [dict(self.specs)], [int(memory)])
        return cache

    @contextlib.contextmanager
    def served_with(self, context: int, *, or_less: bool = True) -> Iterator[None]:
        """Let vLLM serve texts of so many tokens, or of as many as fit."""
        model = self.config.model_config
        before = model.max_model_len, model.original_max_model_len
        model.max_model_len = context
        model.original_max_model_len = -1 if or_less else context
        try:
            yield
        finally:
            model.max_model_len, model.original_max_model_len = before


def batch_defaults(gpu: Gpu) -> tuple[int, int]:
    """Return vLLM's defaults on a GPU: tokens of a batch, and texts that are computed at once."""
    with as_on(gpu, cuda=True):
        tokens, texts = find("AsyncEngineArgs").get_batch_defaults(1)
    context = find("UsageContext").OPENAI_API_SERVER
    return tokens[context], texts[context]


def plan_cache(
    arguments: EngineArguments, architectures: Sequence[str], tensor: int, gpu: Gpu | None
) -> CachePlan:
    """Build a model without weights, and ask its layers for their caches.

    Args:
        arguments: with a directory as the model, in which there is at least its config.json.
        architectures: those that config.json names.
        tensor: GPUs that share every layer.
        gpu: one of them, if it is not here; None: they are this machine's, or parts of its CPU.

    Raises:
        StartFailed: vLLM refuses the model, or the arguments for it.
        MachineUnfit: vLLM can't build the model here, for want of a kernel, say.
    """
    # vLLM would choose this one, too, but count the GPUs first.
    backend = "mp" if tensor > 1 else None
    options = arguments.with_options(
        **_ALONE, tensor_parallel_size=tensor, distributed_executor_backend=backend
    ).vllm
    context = find("UsageContext").OPENAI_API_SERVER
    with as_on(gpu) if gpu else contextlib.nullcontext():
        try:
            load_classes(architectures)
            made = find("AsyncEngineArgs").from_cli_args(options)
            if gpu:
                tokens, texts = batch_defaults(gpu)
                BATCH_DEFAULTS.replace(made, lambda *_: ({context: tokens}, {context: texts}))
            config = made.create_engine_config(context)
        except MALFORMED as error:
            raise StartFailed(reason(error)) from error
        try:
            return _built(config, tensor, like_gpu=gpu is not None)
        except (LookupError, ValueError) as error:
            raise StartFailed(f"{type(error).__name__}: {reason(error)}") from error
        except MALFORMED as error:
            raise MachineUnfit(reason(error)) from error


def _built(config: Any, tensor: int, *, like_gpu: bool) -> CachePlan:
    model = config.model_config
    method = model.quantization
    capability = find("get_quantization_config")(method).get_min_capability() if method else 0
    # The cache does not depend on it, while its kernels may be a GPU's only.
    config.quant_config = None
    with find("set_current_vllm_config")(config), _one_of(tensor):
        dtype = torch.get_default_dtype()
        torch.set_default_dtype(model.dtype)
        try:
            with torch.device("meta"):
                layers = find("initialize_model")(config)
        finally:
            torch.set_default_dtype(dtype)
        if like_gpu:
            _attend_as_gpus(config.compilation_config.static_forward_context.values())
        find("current_platform").update_block_size_for_backend(config)
        specs = find("get_kv_cache_spec")(config)
        layouts = [layout.name for layout in find("KVCacheLayout")]
        find("resolve_kv_cache_layout")(config, [layouts], specs.values())
    parameters = sum(parameter.numel() for parameter in layers.parameters())
    adapters = _adapters(layers, config.lora_config, model.dtype.itemsize)
    return CachePlan(config, specs, model.max_model_len, parameters, adapters, capability)


def _attend_as_gpus(layers: Iterable[Any]) -> None:
    """Give layers that attend the sizes of blocks that they have on GPUs."""
    for layer in layers:
        if hasattr(layer, "attn_backend"):
            name = _LATENT_ATTENTION if layer.attn_backend.is_mla() else _ATTENTION
            layer.attn_backend = find("AttentionBackendEnum")[name].get_class()


def _adapters(layers: Any, lora: Any, element_bytes: int) -> int:
    """Return the bytes of both matrices of an adapter beside each linear layer, times adapters."""
    if lora is None:
        return 0
    linear = (layer for layer in layers.modules() if isinstance(layer, find("LinearBase")))
    rows = sum(
        # Layers that are joined into one have a first matrix each.
        len(getattr(layer, "output_sizes", (0,))) * layer.weight.shape[1] + layer.weight.shape[0]
        for layer in linear
    )
    return int(rows * lora.max_lora_rank * lora.max_loras * element_bytes)


@contextlib.contextmanager
def _one_of(tensor: int) -> Iterator[None]:
    """Make this process the first of those that share a model's layers; the others don't exist.

    Layers ask for their share only: no tensor is sent anywhere.
    """
    state = find("parallel_state")
    with tempfile.TemporaryDirectory() as folder:
        meeting = (Path(folder) / "meeting").as_uri()
        state.init_distributed_environment(1, 0, meeting, 0, "gloo")
        try:
            state.initialize_model_parallel(1, 1)
            state.get_tp_group().world_size = tensor
            yield
        finally:
            state.destroy_model_parallel()
            state.destroy_distributed_environment()
