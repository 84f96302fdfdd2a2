"""Parses hyperparameters of OpenAI's or LLM Engine's API, whose numbers may be strings."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from worker.errors import InvalidInput, field_error
from worker.fine_tunes.spec import Hyperparameters, Lora
from worker.validation import drop_nulls, to_invalid_input, unknown_key_message

AUTO = "auto"
MULTIPLIER, PEFT = "learning_rate_multiplier", "peft_config"
# The worker's names by the names in requests. Where a line has two, the second is OpenAI's.
FIELD_NAMES = {
    **{"epochs": "epochs", "n_epochs": "epochs"},
    **{"lr": "learning_rate", MULTIPLIER: "learning_rate"},
    "batch_size": "batch_size",
    "warmup_ratio": "warmup_ratio",
    "weight_decay": "weight_decay",
    PEFT: "lora",
}
# Default learning rate, by which OpenAI's multiplier is multiplied.
LEARNING_RATE = float(Hyperparameters.model_fields["learning_rate"].default)

# The only supported values of some fields in PEFT's LoraConfig.
REQUIRED_VALUES: dict[str, Any] = {
    "bias": "none",
    "task_type": "CAUSAL_LM",
    "peft_type": "LORA",
    "init_lora_weights": True,
    "inference_mode": False,
    "fan_in_fan_out": False,
}
# Fields of LoraConfig that vLLM can't serve, or that the trainer doesn't support. They must be
# absent, null, false or empty.
UNSUPPORTED = frozenset(
    """
    alora_invocation_tokens alpha_pattern arrow_config corda_config ensure_weight_tying eva_config
    exclude_modules layer_replication layers_pattern layers_to_transform loftq_config lora_bias
    lora_ga_config modules_to_save rank_pattern target_parameters trainable_token_indices
    use_bdlora use_dora use_qalora
    """.split()
)
ALL_LINEAR = "all-linear"
_BOOLEANS = {"true": True, "false": False}
# Maximum names of layers, and characters of each: they are stored.
MAX_MODULES, MAX_MODULE_NAME = 64, 128
_MODULE_NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")


def parse_hyperparameters(
    raw_values: Mapping[str, Any], parent: str, *, max_rank: int, seed: int | None = None
) -> Hyperparameters:
    """Parse hyperparameters; those that are missing, null or "auto" get their defaults.

    ``parent`` is the object's name in messages, such as "hyperparameters". ``seed`` is from the
    request, where both APIs have it outside of this object.
    """
    values: dict[str, Any] = {} if seed is None else {"seed": seed}
    fields: dict[str, str] = {"seed": "seed"}
    for key, value in drop_nulls(raw_values).items():
        field = f"{parent}.{key}"
        if (name := FIELD_NAMES.get(key)) is None:
            raise _unknown_key_error(key, FIELD_NAMES, parent)
        if name in fields:
            raise field_error(field, f"{fields[name]} has the same meaning: use one of them")
        if value != AUTO:
            fields[name], values[name] = field, _parse_value(key, value, field)
    lora = values.get("lora", {})
    values["lora"] = {"r": min(Lora().r, max_rank), **lora}
    try:
        parsed = Hyperparameters.model_validate(values)
    except ValidationError as error:
        raise to_invalid_input(error, aliases=fields) from None
    if (rank := parsed.lora.r) > max_rank:
        message = f"{rank} is more than this endpoint serves: {max_rank} (MAX_LORA_RANK)"
        raise field_error(f"{fields['lora']}.r", message)
    # By default, ``lora_alpha`` is twice the rank.
    if "lora_alpha" in lora:
        return parsed
    scaled = parsed.lora.model_copy(update={"lora_alpha": 2 * rank})
    return parsed.model_copy(update={"lora": scaled})


def _parse_value(key: str, value: Any, field: str) -> Any:
    """Return the value of a hyperparameter, without checking its range."""
    if key == PEFT:
        return _parse_lora(value, field)
    if isinstance(value, bool):
        raise field_error(field, "a number")
    if key == MULTIPLIER:
        try:
            return float(value) * LEARNING_RATE
        except (TypeError, ValueError, OverflowError):
            raise field_error(field, 'a number above 0, or "auto"') from None
    return value


def _parse_lora(config: Any, parent: str) -> dict[str, Any]:
    """Return the adapter's parameters from a ``peft_config``, by the names of ``Lora``."""
    if not isinstance(config, dict):
        raise field_error(parent, "an object with parameters of PEFT's LoraConfig")
    values: dict[str, Any] = {}
    for key, raw in drop_nulls(config).items():
        field = f"{parent}.{key}"
        value = _BOOLEANS.get(raw.lower(), raw) if isinstance(raw, str) else raw
        if key == "target_modules":
            values[key] = _parse_target_modules(value, field)
        elif key in Lora.model_fields:
            is_flag = key == "use_rslora"
            if isinstance(value, bool) != is_flag:
                raise field_error(field, "true or false" if is_flag else "a number")
            values[key] = value
        elif key in REQUIRED_VALUES:
            if value != REQUIRED_VALUES[key]:
                raise field_error(
                    field, f"only {REQUIRED_VALUES[key]!r}: vLLM serves no other adapters"
                )
        elif key not in UNSUPPORTED:
            raise _unknown_key_error(key, (*Lora.model_fields, *REQUIRED_VALUES), parent)
        elif value not in (False, [], {}):
            raise field_error(field, "such adapters can't be trained here and served: leave it out")
    return values


def _parse_target_modules(value: Any, field: str) -> tuple[str, ...] | None:
    if value == ALL_LINEAR:
        # None is the trainer's default: all linear layers of attention and MLP, without the head.
        return None
    names = [value] if isinstance(value, str) else value
    if isinstance(names, list) and 0 < len(names) <= MAX_MODULES:
        texts = [name for name in names if isinstance(name, str) and len(name) <= MAX_MODULE_NAME]
        if len(texts) == len(names) and all(map(_MODULE_NAME.fullmatch, texts)):
            return tuple(dict.fromkeys(texts))
    raise field_error(
        field,
        f'up to {MAX_MODULES} names of layers, for example ["q_proj", "v_proj"], or "all-linear"',
    )


def _unknown_key_error(key: str, known_keys: Iterable[str], parent: str) -> InvalidInput:
    field = f"{parent}.{key}"
    known_fields = [f"{parent}.{name}" for name in known_keys]
    return InvalidInput(unknown_key_message(field, known_fields), param=field)
