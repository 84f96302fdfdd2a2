"""Hyperparameters by the names of OpenAI and of LLM Engine, as numbers or as texts."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from trainer.spec import Hyperparameters, Lora
from worker.errors import InvalidInput
from worker.validation import invalid_fields, unknown_key, without_nulls

AUTO = "auto"
MULTIPLIER, PEFT = "learning_rate_multiplier", "peft_config"
# What callers write -> what it is here. The first of a line is LLM Engine's, the second OpenAI's.
NAMES = {
    **{"epochs": "epochs", "n_epochs": "epochs"},
    **{"lr": "learning_rate", MULTIPLIER: "learning_rate"},
    "batch_size": "batch_size",
    "warmup_ratio": "warmup_ratio",
    "weight_decay": "weight_decay",
    PEFT: "lora",
}
# What OpenAI's multiplier multiplies.
LEARNING_RATE = float(Hyperparameters.model_fields["learning_rate"].default)

# Of PEFT's LoraConfig: the one value that each may have.
ONLY: dict[str, Any] = {
    "bias": "none",
    "task_type": "CAUSAL_LM",
    "peft_type": "LORA",
    "init_lora_weights": True,
    "inference_mode": False,
    "fan_in_fan_out": False,
}
# Likewise, what vLLM can't serve or the trainer doesn't do: to be left out or empty.
NOT_SERVED = frozenset(
    """
    alora_invocation_tokens alpha_pattern arrow_config corda_config ensure_weight_tying eva_config
    exclude_modules layer_replication layers_pattern layers_to_transform loftq_config lora_bias
    lora_ga_config modules_to_save rank_pattern target_parameters trainable_token_indices
    use_bdlora use_dora use_qalora
    """.split()
)
ALL_LINEAR = "all-linear"
_TEXTS = {"true": True, "false": False}
_MODULE = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")


def hyperparameters(
    given: Mapping[str, Any], holder: str, *, max_rank: int, seed: int | None = None
) -> Hyperparameters:
    """Read hyperparameters; what is not given, null or "auto" has its default.

    Args:
        given: as the caller wrote them.
        holder: what the object is called, for messages: ``hyperparameters``.
        max_rank: of adapters that the endpoint serves.
        seed: which both APIs have elsewhere, if at all.

    Raises:
        InvalidInput: naming the field.
    """
    values: dict[str, Any] = {} if seed is None else {"seed": seed}
    written: dict[str, str] = {"seed": "seed"}
    for key, value in without_nulls(given).items():
        place = f"{holder}.{key}"
        if (name := NAMES.get(key)) is None:
            raise _unknown(key, NAMES, holder)
        if name in written:
            raise _refused(place, f"{written[name]} says the same: give one of them")
        if value != AUTO:
            written[name], values[name] = place, _value(key, value, place)
    lora = values.get("lora", {})
    values["lora"] = {"r": min(Lora().r, max_rank), **lora}
    try:
        found = Hyperparameters.model_validate(values)
    except ValidationError as error:
        raise invalid_fields(error, written=written) from None
    if (rank := found.lora.r) > max_rank:
        message = f"{rank} is more than this endpoint serves: {max_rank} (MAX_LORA_RANK)"
        raise _refused(f"{written['lora']}.r", message)
    if "lora_alpha" in lora:
        return found
    scaled = found.lora.model_copy(update={"lora_alpha": 2 * rank})
    return found.model_copy(update={"lora": scaled})


def _value(key: str, value: Any, place: str) -> Any:
    """Return a hyperparameter's value, whose range is not checked yet."""
    if key == PEFT:
        return _lora(value, place)
    if isinstance(value, bool):
        raise _refused(place, "a number")
    return _times(value, place) if key == MULTIPLIER else value


def _lora(config: Any, holder: str) -> dict[str, Any]:
    """Return what a ``peft_config`` says of the adapter, by the names of ``Lora``."""
    if not isinstance(config, dict):
        raise _refused(holder, "an object with parameters of PEFT's LoraConfig")
    values: dict[str, Any] = {}
    for key, written in without_nulls(config).items():
        place = f"{holder}.{key}"
        value = _TEXTS.get(written.lower(), written) if isinstance(written, str) else written
        if key in Lora.model_fields:
            values[key] = _of_lora(key, value, place)
        elif key not in {*ONLY, *NOT_SERVED}:
            raise _unknown(key, (*Lora.model_fields, *ONLY), holder)
        elif key in ONLY and value != ONLY[key]:
            raise _refused(place, f"only {ONLY[key]!r}: vLLM serves no other adapters")
        elif key in NOT_SERVED and value not in (False, [], {}):
            raise _refused(place, "such adapters can't be trained here and served: leave it out")
    return values


def _of_lora(key: str, value: Any, place: str) -> Any:
    if key == "target_modules":
        return _modules(value, place)
    flag = key == "use_rslora"
    if isinstance(value, bool) != flag:
        raise _refused(place, "true or false" if flag else "a number")
    return value


def _modules(value: Any, place: str) -> tuple[str, ...] | None:
    if value == ALL_LINEAR:
        # The default: the attention's and the MLP's layers, without the head.
        return None
    names = [value] if isinstance(value, str) else value
    if isinstance(names, list) and names and all(map(_is_module, names)):
        return tuple(dict.fromkeys(names))
    raise _refused(place, 'names of layers, for example ["q_proj", "v_proj"], or "all-linear"')


def _is_module(name: object) -> bool:
    return isinstance(name, str) and _MODULE.fullmatch(name) is not None


def _times(value: Any, place: str) -> float:
    try:
        return float(value) * LEARNING_RATE
    except (TypeError, ValueError, OverflowError):
        raise _refused(place, 'a number above 0, or "auto"') from None


def _unknown(key: str, known: Iterable[str], holder: str) -> InvalidInput:
    place = f"{holder}.{key}"
    return InvalidInput(unknown_key(place, [f"{holder}.{name}" for name in known]), param=place)


def _refused(place: str, reason: str) -> InvalidInput:
    return InvalidInput(f"{place}: {reason}", param=place)
