"""Checks that predict, with vLLM's own code, why a core or a first request would fail.

They run before a core exists, and none of them needs weights. Each check raises ``StartFailed``, or
any error of vLLM and its libraries.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import torch
from vllm.exceptions import VLLMError
from vllm.lora.peft_helper import PEFTHelper

from worker.engine.arguments import EngineArguments
from worker.engine.cache_plan import build_undivided_model, lacks_data
from worker.engine.machine import configures_for_cpu
from worker.engine.model_config import TRANSCRIPTION_ONLY, can_be_served
from worker.engine.run.adapters.files import BrokenAdapter, check_lora_modules
from worker.engine.run.healing.core import CoreFailed
from worker.engine.seam.locations import import_from_vllm
from worker.engine.start.loading import LOADERS
from worker.errors import StartFailed
from worker.settings.environment import process_environ
from worker.store import Artifact, disk

# The text that a tokenizer must encode and decode, and the beginning of the messages if it doesn't.
_TEXT = "Hi"
BROKEN_TOKENIZER = "the tokenizer doesn't work for this model"
# A torch operator that vLLM's CPU builds declare, but that some builds don't implement.
_FP8_OPERATOR = "static_scaled_fp8_quant"
# The operator of state-space models, which these builds lack.
_SCAN_OPERATOR = "selective_scan_fwd"
# Packages that values of options require, by option and value.
_REQUIRED_PACKAGES = {
    "LOAD_FORMAT": {
        **LOADERS,
        "modelexpress": "modelexpress",
        "runai_streamer_sharded": LOADERS["runai_streamer"],
        "tensorizer": "tensorizer",
    },
    "PREFIX_CACHING_HASH_ALGO": {"xxhash": "xxhash", "xxhash_cbor": "xxhash"},
}
# Load formats whose loader is vLLM's default one.
_HEADER_FORMATS = frozenset({"auto", "hf", "safetensors", "pt", "mistral"})


def check_config_on_any_machine(arguments: EngineArguments) -> None:
    """Check for refusals that would happen on every machine, such as broken adapters."""
    config = arguments.config
    model, backend = config.model_config, config.parallel_config.distributed_executor_backend
    if not can_be_served(model):
        raise StartFailed(TRANSCRIPTION_ONLY)
    check_lora_modules(arguments.vllm_args.lora_modules or (), config)
    # vLLM imports the required packages only when a core uses them.
    for option, packages in _REQUIRED_PACKAGES.items():
        value = str(getattr(arguments.vllm_args, option.lower()))
        if (package := packages.get(value)) and find_spec(package) is None:
            name = arguments.setting_name(option)
            raise StartFailed(f"{name}={value} needs the package {package}, which is not installed")
    if backend == "external_launcher" and "RANK" not in process_environ():
        raise StartFailed(f"DISTRIBUTED_EXECUTOR_BACKEND={backend} is for processes of torchrun")
    # A core first passes the seed to numpy, which accepts no other values.
    if not 0 <= model.seed < 2**32:
        raise StartFailed("Seed must be between 0 and 2**32 - 1")


def check_config_on_cpu(arguments: EngineArguments) -> None:
    """On a CPU, check for features that vLLM's CPU builds lack and options that need a GPU."""
    if not configures_for_cpu():
        return
    config = arguments.config
    if config.parallel_config.distributed_executor_backend == "mp":
        try:
            # vLLM assigns a separate NUMA node to each process, so there must be enough nodes.
            import_from_vllm("OMPProcessManager")(config)
        except AssertionError as error:
            raise StartFailed(str(error)) from error
    method = config.model_config.quantization or ""
    operator: Any = getattr(torch.ops._C, _FP8_OPERATOR, None)
    lacks_operator = operator is None or not operator.default._schema.arguments
    if "fp" in method and lacks_operator and _quantizes_during_load(config.quant_config):
        raise StartFailed(f"this build of vLLM for CPUs can't quantize a model to {method}")
    has_fp8_cache = torch.cpu._is_avx512_supported() or torch.cpu._is_amx_tile_supported()
    if str(config.cache_config.cache_dtype).startswith("fp8") and not has_fp8_cache:
        raise StartFailed("an 8-bit cache on a CPU needs a processor with AVX-512 or AMX")
    if config.model_config.is_attention_free and not hasattr(torch.ops._C, _SCAN_OPERATOR):
        raise StartFailed("this build of vLLM for CPUs can't run state-space models")
    if getattr(config.cache_config, "kv_offloading_size", None):
        raise StartFailed("KV_OFFLOADING_SIZE is for a GPU's cache, and there is none")
    _check_block_size(config)


def check_tokenizer(arguments: EngineArguments) -> None:
    """Check that the tokenizer has a vocabulary, and that a text survives it.

    Without the files of its vocabulary, some classes of transformers create an empty tokenizer, and
    others fail only when they decode the first token.
    """
    model = arguments.config.model_config
    if model.skip_tokenizer_init:
        return
    # vLLM caches the tokenizer, and the core inherits it.
    tokenizer = import_from_vllm("cached_tokenizer_from_config")(model)
    try:
        ids = tokenizer.encode(_TEXT, add_special_tokens=False)
        # vLLM decodes a whole text, or token by token.
        tokenizer.decode(ids)
        tokens = tokenizer.convert_ids_to_tokens(ids)
        tokenizer.convert_tokens_to_string(tokens)
    # The class of a tokenizer may be the model's own, or not the one that its files are for.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".rstrip(": ")
        raise StartFailed(f"{BROKEN_TOKENIZER}: {reason}") from error
    # Getting the whole vocabulary takes a while. Without it, a tokenizer has only the tokens that
    # its configuration adds.
    if not _has_letters(tokens, {*tokenizer.all_special_tokens}) and not _has_letters(
        tokenizer.get_vocab(), {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
    ):
        raise StartFailed(f"{BROKEN_TOKENIZER}: its vocabulary is empty")
    check_token_ids(ids, model)


def _has_letters(tokens: Iterable[str], ignored: Container[str]) -> bool:
    return any(any(map(str.isalnum, token)) for token in tokens if token not in ignored)


def check_token_ids(ids: Sequence[int], model_config: Any) -> None:
    """Check that a prompt has tokens, and only those of the model; others would kill the core."""
    if not ids:
        raise StartFailed("the prompt of a first request is empty")
    if (largest := max(ids)) >= (size := model_config.get_vocab_size()):
        raise StartFailed(
            f"{BROKEN_TOKENIZER}: it makes the token {largest} of a text, and the model has only "
            f"{size}"
        )


def check_processor(arguments: EngineArguments) -> None:
    """Check that the processor of images, audio or videos can be created, if the model needs one.

    vLLM would report missing files only when the core has loaded the weights.
    """
    model = arguments.config.model_config
    if model.multimodal_config is None or model.skip_tokenizer_init:
        return
    info = import_from_vllm("MULTIMODAL_REGISTRY").get_processing_info(model)
    if any(info.allowed_mm_limits.values()):
        info.get_hf_processor()


def check_sampling_defaults(arguments: EngineArguments) -> None:
    """Check that the model's generation_config.json has values that vLLM accepts in a request.

    vLLM validates the ids of the tokens that end a text only in the core, which would not answer.
    """
    model = arguments.config.model_config
    if model.runner_type == "generate":
        sampling_params = import_from_vllm("SamplingParams")
        try:
            params = sampling_params(**model.get_diff_sampling_param())
            params.update_from_generation_config(model.try_get_generation_config())
            msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=sampling_params)
        except (ArithmeticError, TypeError, ValueError, VLLMError) as error:
            problem = f"the sampling defaults of generation_config.json are invalid: {error}"
            name = arguments.setting_name("GENERATION_CONFIG")
            raise StartFailed(problem, f"correct the file, or set {name}=vllm") from error


def check_lora_support(arguments: EngineArguments) -> None:
    """Check that vLLM has adapters for the model's architecture, if they are enabled.

    The core finds the same; this process imports the model's code only in the doctor.
    """
    config = arguments.config
    if config.lora_config is not None:
        model_class = import_from_vllm("get_model_cls")(config.model_config)
        if not import_from_vllm("supports_lora")(model_class):
            raise StartFailed(f"{model_class.__name__} does not support LoRA yet")


def check_loading(arguments: EngineArguments) -> None:
    """Let vLLM load a model's weights and adapters on the disk into layers without data.

    This finds weights that are missing, or that have other shapes than the configuration says, and
    adapters of other models. The core finds the same, so only the doctor needs this.
    """
    config, directory = arguments.config, Path(arguments.vllm_args.model)
    load_format = str(arguments.vllm_args.load_format)
    artifact = Artifact(str(directory), load_format=load_format)
    is_readable = load_format in _HEADER_FORMATS and directory.is_dir()
    paths = disk.weight_paths(directory, artifact) if is_readable else []
    modules = arguments.vllm_args.lora_modules or ()
    adapters = [module for module in modules if Path(module.path).is_dir()]
    # Kernels of quantized layers may be missing here.
    is_quantized = config.model_config.quantization is not None and not configures_for_cpu()
    if is_quantized or not (paths or adapters):
        return
    step = "initialize_model"
    try:
        with build_undivided_model(arguments) as layers:
            if configures_for_cpu():
                _check_cpu_attention(layers, config)
            for module in adapters:
                _load_adapter(module, layers)
            step = "load_weights"
            if paths and not hasattr(layers, "secondary_weights"):
                loader = import_from_vllm("DefaultModelLoader")(config.load_config)
                loader.get_all_weights = lambda *_: _read_headers(paths)
                loader.load_weights(layers, config.model_config)
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


def _quantizes_during_load(config: Any) -> bool:
    serialized = getattr(config, "is_checkpoint_fp8_serialized", True)
    return serialized is False or isinstance(config, import_from_vllm("OnlineQuantizationConfig"))


def _check_block_size(config: Any) -> None:
    """Check BLOCK_SIZE against the attention backend of a model with uniform layers.

    Only CPUs have a single backend; on GPUs, vLLM chooses it when it creates the layers.
    """
    model, cache = config.model_config, config.cache_config
    has_uniform_layers = not (model.use_mla or model.is_hybrid or model.is_attention_free)
    if has_uniform_layers and getattr(cache, "user_specified_block_size", False):
        with import_from_vllm("set_current_vllm_config")(config):
            backend = import_from_vllm("get_attn_backend")(model.get_head_size(), model.dtype, None)
        import_from_vllm("select_common_block_size")(cache.block_size, [backend])
