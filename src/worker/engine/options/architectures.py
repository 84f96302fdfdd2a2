"""What the installed vLLM can load: its registry is asked, no model's code is imported."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import transformers
from huggingface_hub.errors import StrictDataclassError

from worker.engine.locations import find
from worker.engine.options import REFUSALS


class Support(StrEnum):
    """How vLLM runs an architecture, if it does."""

    OWN = "vLLM's own"
    # By the code of the transformers library, or of the model's repository.
    TRANSFORMERS = "transformers"
    CODE = "its own code"
    NONE = "none"


def support(architectures: Sequence[str], config: Mapping[str, Any], model_impl: str) -> Support:
    """Tell how vLLM runs a model, by the rules of its registry.

    Whether code of transformers' or of the repository's fits vLLM is known only once it is
    imported.

    Args:
        architectures: those that the configuration names.
        config: the model's.
        model_impl: vLLM's option.
    """
    own = set(find("ModelRegistry").get_supported_archs())
    if model_impl == "terratorch":
        return Support.OWN
    if model_impl != "transformers" and any(_own(each, own) for each in architectures):
        return Support.OWN
    if model_impl == "vllm" or not architectures:
        return Support.NONE
    if architectures[0] in own or architectures[0] in dir(transformers):
        return Support.TRANSFORMERS
    auto_map = config.get("auto_map")
    names = auto_map if isinstance(auto_map, Mapping) else ()
    return Support.CODE if any(name.startswith("AutoModel") for name in names) else Support.NONE


def _own(architecture: str, own: set[str]) -> bool:
    """Tell whether vLLM has an architecture, or the model that it wraps for another task."""
    suffixes = [suffix for suffix, _ in find("iter_architecture_defaults")()]
    ending = next((suffix for suffix in suffixes if architecture.endswith(suffix)), None)
    if ending is None:
        return architecture in own
    return any(architecture.replace(ending, suffix) in own for suffix in [ending, *suffixes])


def knows_quantization(method: str) -> bool:
    """Tell whether vLLM has a method of quantisation, under the name that checkpoints give it."""
    return method in find("QUANTIZATION_METHODS")


def completed(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add what a config.json leaves to the defaults of its class, where transformers has it."""
    try:
        known = transformers.CONFIG_MAPPING[str(config.get("model_type"))]
        return {**config, **known.from_dict(dict(config)).to_dict()}
    except (*REFUSALS, ArithmeticError, AttributeError, StrictDataclassError):
        # What it makes of a wrong one is nobody's promise; vLLM tells more, if it matters.
        return config
