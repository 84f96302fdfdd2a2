"""Checks that predict, with vLLM's own code, why a core or a first request would fail.

Most run before a core exists, and none of them needs weights. Each check raises ``StartFailed``, or
any error of vLLM and its libraries.
"""

import contextlib
import math
from collections.abc import Container, Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import msgspec
import torch
from vllm.exceptions import VLLMError

from worker.engine.arguments import EngineArguments
from worker.engine.machine import configures_for_cpu
from worker.engine.run.adapters.files import check_lora_modules
from worker.engine.seam.locations import import_from_vllm
from worker.engine.start.steps import LOADERS
from worker.errors import RefusedByEngine, RequestError, StartFailed
from worker.settings.environment import process_environ

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

NUM_GPU_BLOCKS_OVERRIDE = "NUM_GPU_BLOCKS_OVERRIDE"
CPU_KVCACHE_SPACE = "VLLM_CPU_KVCACHE_SPACE"


def check_config_on_any_machine(arguments: EngineArguments) -> None:
    """Check for refusals that would happen on every machine, such as broken adapters."""
    config = arguments.config
    model, backend = config.model_config, config.parallel_config.distributed_executor_backend
    if model.registry.is_transcription_only_model(model.architectures, model):
        raise StartFailed("the model only transcribes speech, which no route of the worker serves")
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
    model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    if parallel.distributed_executor_backend == "mp":
        try:
            # vLLM assigns a separate NUMA node to each process, so there must be enough nodes.
            import_from_vllm("OMPProcessManager")(config)
        except AssertionError as error:
            raise StartFailed(str(error)) from error

    method, quantization = model.quantization or "", config.quant_config
    operator: Any = getattr(torch.ops._C, _FP8_OPERATOR, None)
    lacks_operator = operator is None or not operator.default._schema.arguments
    if "fp" in method and lacks_operator:
        is_serialized = getattr(quantization, "is_checkpoint_fp8_serialized", True)
        online_config = import_from_vllm("OnlineQuantizationConfig")
        if is_serialized is False or isinstance(quantization, online_config):
            raise StartFailed(f"this build of vLLM for CPUs can't quantize a model to {method}")

    has_fp8_cache = torch.cpu._is_avx512_supported() or torch.cpu._is_amx_tile_supported()
    if str(cache.cache_dtype).startswith("fp8") and not has_fp8_cache:
        raise StartFailed("an 8-bit cache on a CPU needs a processor with AVX-512 or AMX")
    if model.is_attention_free and not hasattr(torch.ops._C, _SCAN_OPERATOR):
        raise StartFailed("this build of vLLM for CPUs can't run state-space models")
    if getattr(cache, "kv_offloading_size", None):
        raise StartFailed("KV_OFFLOADING_SIZE is for a GPU's cache, and there is none")
    # vLLM must gather the tokens for experts that several engines share.
    shares_experts = model.is_moe and parallel.data_parallel_size > 1
    if shares_experts and "all_gatherv" not in vars(import_from_vllm("CpuCommunicator")):
        raise StartFailed("vLLM can't divide a model with experts among engines on CPUs")

    # CPUs have a single attention backend. On GPUs, vLLM chooses it when it creates the layers.
    has_uniform_layers = not (model.use_mla or model.is_hybrid or model.is_attention_free)
    if has_uniform_layers and getattr(cache, "user_specified_block_size", False):
        with import_from_vllm("set_current_vllm_config")(config):
            backend = import_from_vllm("get_attn_backend")(model.get_head_size(), model.dtype, None)
        import_from_vllm("select_common_block_size")(cache.block_size, [backend])


def check_tokenizer(arguments: EngineArguments) -> None:
    """Check that there is a tokenizer with a vocabulary, and that a text survives it.

    Without the files of its vocabulary, some classes of transformers create an empty tokenizer, and
    others fail only when they decode the first token. ``refusals`` names the files that lack.
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


def short_context_warning(
    arguments: EngineArguments, model_context: int, min_context: int
) -> str | None:
    """Return a warning if the memory is too small for the model's full context; None otherwise.

    vLLM has fitted the context in ``arguments`` to the memory; before, it had ``model_context``
    tokens. A context of the main model below ``min_context``, MIN_MODEL_LEN, is a ``StartFailed``.
    """
    fitted_context = arguments.config.model_config.max_model_len
    if fitted_context >= model_context:
        return None
    if NUM_GPU_BLOCKS_OVERRIDE in arguments.operator_options:
        advice = f"leave {NUM_GPU_BLOCKS_OVERRIDE} unset"
    elif arguments.config.device_config.device_type == "cpu":
        space = int(process_environ().get(CPU_KVCACHE_SPACE) or 1)
        advice = f"set {CPU_KVCACHE_SPACE}={math.ceil(space * model_context / fitted_context)}"
    else:
        advice = "use GPUs with more memory, or more GPUs, or set KV_CACHE_DTYPE=fp8"
    name = arguments.vllm_args.served_model_name[0]
    if arguments.prefix == "" and fitted_context < min(min_context, model_context):
        raise StartFailed(
            f"The longest context of {name} that fits into memory has {fitted_context:,} tokens, "
            f"less than MIN_MODEL_LEN={min_context}; the model's own has {model_context:,}. "
            f"For a longer one, {advice}."
        )
    context = f"{arguments.prefix}MAX_MODEL_LEN"
    return (
        f"{name}: the context has {fitted_context:,} of the model's {model_context:,} tokens, as "
        f"many as fit into memory: for all of them, {advice}; with {context} set, a start fails if "
        "that length does not fit"
    )


@contextlib.contextmanager
def convert_first_request_refusals() -> Iterator[None]:
    """Convert the refusal of a first request into an error that makes the startup fail."""
    try:
        yield
    except (RequestError, RefusedByEngine) as refused:
        raise StartFailed(f"a first request is refused: {refused.message}") from refused
