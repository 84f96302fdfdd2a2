"""Loads the base model, and puts an adapter on it."""

import re
from collections.abc import Sequence
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, PreTrainedModel, set_seed
from transformers.utils import logging

from trainer.batches import lacking
from trainer.endings import Failure
from trainer.spec import Lora, Spec
from worker.masking import without_paths

# The projections of attention and MLP, by the names that architectures give them. Among them are
# no embeddings, no head and no router: vLLM serves adapters of those for few models or none.
PROJECTIONS = frozenset(
    """
    q_proj k_proj v_proj o_proj gate_proj up_proj down_proj
    qkv_proj gate_up_proj out_proj fc1 fc2 c_attn c_fc c_proj w1 w2 w3 wq wk wv wo wqkv Wqkv
    query_key_value dense dense_h_to_4h dense_4h_to_h
    """.split()
)
# Parts of a model that don't read text.
_OTHER_SENSES = re.compile(r"(^|\.)(vision|visual|audio|image|speech)\w*\.")
# Of layers' names in a message.
_NAMED = 12
# Where the hub's cache has a model: models--org--name/snapshots/<commit>.
_CACHED = re.compile(r"models--(.+)")


def load(spec: Spec) -> PreTrainedModel:
    """Load the base model, in the type that it is trained in, on the device.

    Raises:
        Failure: it can't be trained.
    """
    # Standard error is for what has gone wrong.
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # it has no types
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # as the one before
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            spec.model,
            dtype=dtype(spec.device),
            # One GPU, as the estimate has it, also where there are more.
            device_map={"": 0} if spec.device == "cuda" else None,
            trust_remote_code=spec.trust_remote_code,
            local_files_only=True,
        )
    except (ValueError, ImportError, KeyError, OSError) as error:
        # transformers' own have no number: a file is missing.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        text = str(error).replace(str(spec.model), base_name(spec.model)).splitlines()[0]
        # Errors of imports name Python's own files.
        reason = without_paths(text)
        raise Failure(f"the base model can't be loaded to be trained: {reason}") from error
    except (RuntimeError, MemoryError) as error:
        if not lacking(error):
            raise
        raise Failure(
            "the memory does not suffice for the base model: take a machine with more"
        ) from error
    # It is of use for answers only.
    model.config.use_cache = False
    return model


def dtype(device: str) -> torch.dtype:
    """Return the type of the base model's weights; the adapter's are 32 bits wide everywhere."""
    if device == "cpu":
        return torch.float32
    return (
        torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    )


def with_adapter(model: PreTrainedModel, lora: Lora, seed: int) -> PeftModel:
    """Put a new adapter on a model: the same one for the same seed.

    Raises:
        Failure: the model has no such layers.
    """
    names = layers(model)
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.r,
        lora_alpha=lora.lora_alpha,  # type: ignore[arg-type]  # PEFT takes fractions as well
        lora_dropout=lora.lora_dropout,
        bias="none",
        use_rslora=lora.use_rslora,
        target_modules=targets(names, lora.target_modules),
    )
    if any(_OTHER_SENSES.search(name) for name in names):
        config.exclude_modules = rf".*{_OTHER_SENSES.pattern}.*"
    set_seed(seed)
    adapted = get_peft_model(model, config)
    assert isinstance(adapted, PeftModel)
    # Or it would be looked for on the hub at each checkpoint. Copies of the adapter name it.
    adapted.peft_config["default"].base_model_name_or_path = ""
    return adapted


def layers(model: torch.nn.Module) -> list[str]:
    """Return the full names of all layers with a weight matrix, without embeddings."""
    return [
        name
        for name, module in model.named_modules()
        if getattr(getattr(module, "weight", None), "ndim", 0) == 2
        and not isinstance(module, torch.nn.Embedding)
    ]


def targets(names: Sequence[str], wanted: Sequence[str] | None) -> list[str]:
    """Return the last parts of the names of the layers that get an adapter, sorted.

    Args:
        names: of the model's layers.
        wanted: names of layers; None: the projections.

    Raises:
        Failure: the model lacks them.
    """
    found = {name.rpartition(".")[2] for name in names if not _OTHER_SENSES.search(name)}
    has = f"it has {', '.join(sorted(found)[:_NAMED])}"
    if wanted is None:
        if projections := sorted(found & PROJECTIONS):
            return projections
        raise Failure(f"the model has no layers that are known to take an adapter: {has}")
    if missing := sorted(set(wanted) - found):
        raise Failure(f"target_modules: the model has no layer {missing[0]}: {has}")
    return sorted(set(wanted))


def base_name(model: Path) -> str:
    """Return how a model is called: nothing of where it is on this machine."""
    if model.parent.name == "snapshots" and (match := _CACHED.fullmatch(model.parent.parent.name)):
        return match[1].replace("--", "/")
    return model.name
