"""Rehearses the part of a start that needs a core, without one: loading and a first request.

Only the doctor (``--check``) needs this. vLLM does all of it with the layers of the model, which
have no memory for their data (PyTorch's *meta* device).
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from vllm.lora.peft_helper import PEFTHelper

from worker.engine.arguments import EngineArguments
from worker.engine.cache_plan import build_undivided_model, lacks_data
from worker.engine.machine import configures_for_cpu
from worker.engine.model_config import CONFIG_ERRORS
from worker.engine.run.adapters.files import BrokenAdapter
from worker.engine.run.core import CoreFailed
from worker.engine.run.generation import example_input
from worker.engine.seam.locations import import_from_vllm
from worker.engine.seam.translation import raise_for_error_response, translate_errors
from worker.engine.start import Start
from worker.engine.start.checks import check_token_ids, convert_first_request_refusals
from worker.errors import StartFailed
from worker.messages import add_system_prompt
from worker.store import Artifact, disk

# Load formats whose loader is vLLM's default one.
_HEADER_FORMATS = frozenset({"auto", "hf", "safetensors", "pt", "mistral"})


def rehearse_core(arguments: EngineArguments, start: Start) -> None:
    """Check the first request of an engine, and its weights and adapters if this is its machine.

    Like the checks of ``tables.CORE_CHECKS``, it raises any error.
    """
    config = arguments.config
    model, tasks = config.model_config, _find_tasks(arguments)
    if not model.skip_tokenizer_init:
        if tasks & {"generate", "embed"}:
            asyncio.run(_render_first_message(arguments, start.settings.system_prompt))
    elif model.runner_type == "pooling" and import_from_vllm("enable_scoring_api")(tasks, model):
        # As vLLM's server says it when it creates its routes.
        raise StartFailed("Tokenizer not available when SKIP_TOKENIZER_INIT=True")
    if config.lora_config is not None:
        model_class = import_from_vllm("get_model_cls")(model)
        if not import_from_vllm("supports_lora")(model_class):
            raise StartFailed(f"{model_class.__name__} does not support LoRA yet")
    if not start.simulated_gpu:
        _check_loading(arguments)


def _find_tasks(arguments: EngineArguments) -> Set[str]:
    """Return the tasks of a model, or as many as are enough for its first request."""
    model = arguments.config.model_config
    if model.runner_type == "generate":
        return {"generate"}
    if model.convert_type == "embed" and not model.skip_tokenizer_init:
        return {"embed"}
    # Only the layers of other models have the tasks.
    with contextlib.suppress(*CONFIG_ERRORS), build_undivided_model(arguments) as layers:
        return set(layers.pooler.get_supported_tasks())
    return set()


async def _render_first_message(arguments: EngineArguments, system_prompt: str | None) -> None:
    """Render the warm-up's message, if any, with the part of vLLM's server that needs no core."""
    state = SimpleNamespace()
    await import_from_vllm("init_render_app_state")(arguments.config, state, arguments.vllm_args)
    online_renderer = state.online_renderer
    try:
        if messages := example_input(online_renderer).get("messages"):
            client: Any = SimpleNamespace(errored=False)
            with convert_first_request_refusals(), translate_errors(client):
                request = import_from_vllm("ChatCompletionRequest")(
                    messages=add_system_prompt(messages, system_prompt), max_tokens=1
                )
                _, prompts = raise_for_error_response(await online_renderer.render_chat(request))
                for prompt in prompts:
                    check_token_ids(prompt["prompt_token_ids"], arguments.config.model_config)
        # vLLM does the same in the background while a core starts, and only logs that it failed.
        renderer = online_renderer.renderer
        if (processor := renderer.mm_processor) and hasattr(renderer, "_warmup_mm_processor"):
            renderer._warmup_mm_processor(processor, None, log_prefix="")
    finally:
        online_renderer.renderer.shutdown()


def _check_loading(arguments: EngineArguments) -> None:
    """Let vLLM load a model's weights and adapters on the disk into layers without data.

    This finds weights that are missing, or that have other shapes than the configuration says, and
    adapters of other models.
    """
    config, options, paths = arguments.config, arguments.vllm_args, list[Path]()
    directory, load_format = Path(options.model), str(options.load_format)
    if load_format in _HEADER_FORMATS and directory.is_dir():
        paths = disk.weight_paths(directory, Artifact(str(directory), load_format=load_format))
    modules = options.lora_modules or ()
    adapters = [module for module in modules if Path(module.path).is_dir()]
    is_quantized = config.model_config.quantization is not None
    # The kernels of a GPU's quantized layers may be missing here.
    if (is_quantized and not configures_for_cpu()) or not (paths or adapters):
        return
    step = "initialize_model"
    try:
        with build_undivided_model(arguments) as layers:
            _check_cpu_attention(layers, config)
            for module in adapters:
                _load_adapter(module, layers)
            step = "load_weights"
            if paths and not hasattr(layers, "secondary_weights"):
                loader = import_from_vllm("DefaultModelLoader")(config.load_config)
                loader.get_all_weights = lambda *_: _read_headers(paths)
                loader.load_weights(layers, config.model_config)
            if is_quantized:
                # A missing kernel is no error of the loader, which would be about the weights.
                step = ""
                _multiply_with_quantized_layers(layers)
    except BrokenAdapter:
        raise
    # The code of each model builds its layers and loads its weights in its own way.
    except Exception as error:
        # The core builds the same layers, but with data and, on a GPU, with further kernels.
        is_known = step != "initialize_model" or configures_for_cpu()
        if is_known and not lacks_data(error):
            raise CoreFailed(f"{type(error).__name__}: {error}", step) from error


def _check_cpu_attention(layers: Any, config: Any) -> None:
    """Let vLLM's kernel plan the attention of a token in each layer: it has not all head sizes."""
    if not configures_for_cpu():
        return
    block_size, dtype = config.cache_config.block_size, config.model_config.dtype
    sizes = {
        (layer.num_heads, layer.num_kv_heads, layer.head_size)
        for layer in layers.modules()
        if isinstance(layer, import_from_vllm("Attention"))
    }
    for num_heads, num_kv_heads, head_size in sizes:
        import_from_vllm("cpu_attn_get_scheduler_metadata")(
            num_reqs=1,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_size,
            seq_lens=torch.ones(1, dtype=torch.int32),
            dtype=dtype,
            query_start_loc=torch.tensor([0, 1], dtype=torch.int32),
            causal=True,
            sliding_window_size=-1,
            isa=import_from_vllm("_get_attn_isa")(dtype, block_size, head_size),
            enable_kv_split=False,
        )


def _multiply_with_quantized_layers(layers: Any) -> None:
    """Let vLLM's kernels multiply with a small layer of each kind: some builds lack some kernels.

    The layers of ``layers`` have no data, so others are created, with zeros.
    """
    linear_layers = [
        layer for layer in layers.modules() if isinstance(layer, import_from_vllm("LinearBase"))
    ]
    linear_layers.sort(key=lambda layer: -layer.input_size * layer.output_size)
    smallest = {
        (type(layer.quant_method), type(getattr(layer, "scheme", None))): layer
        for layer in linear_layers
    }
    for layer in smallest.values():
        copy = import_from_vllm("ReplicatedLinear")(
            layer.input_size,
            layer.output_size,
            bias=False,
            params_dtype=layer.params_dtype,
            quant_config=layer.quant_config,
            prefix=layer.prefix,
        )
        for parameter in copy.parameters():
            parameter.data.zero_()
        copy.quant_method.process_weights_after_loading(copy)
        copy(torch.zeros(1, layer.input_size, dtype=layer.params_dtype))


def _load_adapter(module: Any, layers: Any) -> None:
    """Let vLLM load an adapter of LORA_MODULES, with the modules that it accepts for the layers."""
    packed = import_from_vllm("process_packed_modules_mapping")(layers)
    names = {*import_from_vllm("get_supported_lora_modules")(layers)}
    expected = (names & {"experts"}).union(*(packed.get(name, [name]) for name in names))
    mapper = getattr(layers, "hf_to_vllm_mapper", None)
    try:
        import_from_vllm("LoRAModel").from_local_checkpoint(
            module.path,
            expected,
            PEFTHelper.from_local_dir(module.path, None),
            device="cpu",
            weights_mapper=mapper and mapper.get_rename_mapper(),
            skip_prefixes=getattr(layers, "lora_skip_prefixes", None),
        )
    except ValueError as error:
        raise BrokenAdapter(f"LORA_MODULES: {module.name}: {error}") from error


def _read_headers(paths: Sequence[Path]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the names of weights, with tensors that have their shapes and no data."""
    for path in paths:
        if path.suffix == ".safetensors":
            for name, _, shape in disk.read_tensor_headers(path):
                yield name, torch.empty(tuple(shape), device="meta")
        else:
            yield from torch.load(path, map_location="meta", weights_only=True).items()
