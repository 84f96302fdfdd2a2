"""Loads the base model, and adds an adapter to it."""

import re
from collections.abc import Sequence
from pathlib import Path

import torch
from accelerate.utils.memory import should_reduce_batch_size
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, PreTrainedModel, set_seed
from transformers.utils import logging

from trainer.interruptions import TrainingFailure
from worker.fine_tunes.spec import Lora, Spec
from worker.masking import remove_paths

# Names of the projections in attention and MLP in various architectures. Embeddings, heads and
# routers are missing: vLLM serves adapters of these for few models or for no model.
PROJECTIONS = frozenset(
    """
    q_proj k_proj v_proj o_proj gate_proj up_proj down_proj
    qkv_proj gate_up_proj out_proj fc1 fc2 c_attn c_fc c_proj w1 w2 w3 wq wk wv wo wqkv Wqkv
    query_key_value dense dense_h_to_4h dense_4h_to_h
    """.split()
)
# Pattern for names of layers that process media instead of text.
_MEDIA_LAYER = re.compile(r"(^|\.)(vision|visual|audio|image|speech)\w*\.")
# Maximum number of layers that a message lists.
_MAX_LISTED_LAYERS = 12
# Name of a model's directory in the hub's cache, with the files in snapshots/<commit> below it.
_CACHED = re.compile(r"models--(.+)")


def load_model(spec: Spec) -> PreTrainedModel:
    """Load the base model onto the device, in the data type for training.

    Raises:
        TrainingFailure: The model can't be trained.
        OSError: The volume fails.
    """
    # Standard error is reserved for errors.
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # untyped
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # untyped
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            spec.model,
            dtype=weights_dtype(spec.device),
            # One GPU, as in the estimate of memory, even if there are more.
            device_map={"": 0} if spec.device == "cuda" else None,
            trust_remote_code=spec.trust_remote_code,
            local_files_only=True,
        )
    except (ValueError, ImportError, KeyError, OSError) as error:
        # An OSError that transformers itself raises has no errno: a file of the model is missing.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        text = str(error).replace(str(spec.model), model_name(spec.model)).splitlines()[0]
        # Import errors contain the paths of Python's own files.
        reason = remove_paths(text)
        raise TrainingFailure(f"the base model can't be loaded for training: {reason}") from error
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingFailure(
            "there is not enough memory for the base model: use a machine with more"
        ) from error
    # The KV cache is useful for generation only.
    model.config.use_cache = False
    return model


def is_out_of_memory(error: RuntimeError | MemoryError) -> bool:
    return isinstance(error, MemoryError) or bool(should_reduce_batch_size(error))


def weights_dtype(device: str) -> torch.dtype:
    """Return the data type of the base model's weights; the adapter's weights are float32."""
    if device == "cpu":
        return torch.float32
    return (
        torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    )


def add_adapter(model: PreTrainedModel, lora: Lora, seed: int) -> PeftModel:
    """Add a new adapter to a model. The adapter's initial weights depend on the seed only."""
    names = matrix_layer_names(model)
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.r,
        lora_alpha=lora.lora_alpha,  # type: ignore[arg-type]  # PEFT accepts fractions, too
        lora_dropout=lora.lora_dropout,
        bias="none",
        use_rslora=lora.use_rslora,
        target_modules=choose_target_modules(names, lora.target_modules),
    )
    if any(_MEDIA_LAYER.search(name) for name in names):
        config.exclude_modules = rf".*{_MEDIA_LAYER.pattern}.*"
    set_seed(seed)
    adapted = get_peft_model(model, config)
    assert isinstance(adapted, PeftModel)
    # With a name, PEFT would look for the base model on the hub at each checkpoint.
    # ``output.copy_adapter`` writes the name into the copies that are served.
    adapted.peft_config["default"].base_model_name_or_path = ""
    return adapted


def matrix_layer_names(model: torch.nn.Module) -> list[str]:
    """Return the full names of all layers with a weight matrix, without embeddings."""
    return [
        name
        for name, module in model.named_modules()
        if getattr(getattr(module, "weight", None), "ndim", 0) == 2
        and not isinstance(module, torch.nn.Embedding)
    ]


def choose_target_modules(names: Sequence[str], requested: Sequence[str] | None) -> list[str]:
    """Return the last parts of the names of the layers that get an adapter, sorted.

    ``requested`` are such parts, which the model must have; None for all known projections of the
    model, which must have one.
    """
    last_parts = {name.rpartition(".")[2] for name in names if not _MEDIA_LAYER.search(name)}
    has = f"it has {', '.join(sorted(last_parts)[:_MAX_LISTED_LAYERS])}"
    if requested is None:
        if projections := sorted(last_parts & PROJECTIONS):
            return projections
        raise TrainingFailure(
            f"the model has no layers that are known to support an adapter: {has}"
        )
    if missing := sorted(set(requested) - last_parts):
        raise TrainingFailure(f"target_modules: the model has no layer {missing[0]}: {has}")
    return sorted(set(requested))


def model_name(path: Path) -> str:
    """Return a model's name on the hub if it is in the hub's cache, otherwise its directory's."""
    if path.parent.name == "snapshots" and (match := _CACHED.fullmatch(path.parent.parent.name)):
        return match[1].replace("--", "/")
    return path.name
