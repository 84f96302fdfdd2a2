"""Which models the installed vLLM can load, by its registry; no model's code is imported."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import transformers
from huggingface_hub.errors import StrictDataclassError

from worker.engine.locations import find
from worker.engine.translation import START_ERRORS


class Support(StrEnum):
    """How vLLM runs an architecture."""

    OWN = "vLLM's own"
    # Code of the transformers library, or of the model's repository.
    TRANSFORMERS = "transformers"
    CODE = "its own code"
    NONE = "none"


def support(architectures: Sequence[str], config: Mapping[str, Any], model_impl: str) -> Support:
    """Return how vLLM runs a model, by the rules of its registry.

    Whether the code of transformers or of a repository fits vLLM is known only once it is imported.

    Args:
        architectures: names in the configuration.
        config: the content of config.json.
        model_impl: vLLM's option.
    """
    own = set(find("ModelRegistry").get_supported_archs())
    if model_impl == "terratorch":
        return Support.OWN
    if model_impl != "transformers" and any(_own(name, own) for name in architectures):
        return Support.OWN
    if model_impl == "vllm" or not architectures:
        return Support.NONE
    if architectures[0] in own or architectures[0] in dir(transformers):
        return Support.TRANSFORMERS
    auto_map = config.get("auto_map")
    names = auto_map if isinstance(auto_map, Mapping) else ()
    return Support.CODE if any(name.startswith("AutoModel") for name in names) else Support.NONE


def _own(architecture: str, own: set[str]) -> bool:
    """True if vLLM has an architecture, or the model that it wraps for another task."""
    suffixes = [suffix for suffix, _ in find("iter_architecture_defaults")()]
    ending = next((suffix for suffix in suffixes if architecture.endswith(suffix)), None)
    if ending is None:
        return architecture in own
    return any(architecture.replace(ending, suffix) in own for suffix in [ending, *suffixes])


def knows_quantization(method: str) -> bool:
    """True if vLLM has a quantization method, by the name that checkpoints give it."""
    return method in find("QUANTIZATION_METHODS")


def completed(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the defaults of a config.json's class, if transformers has the class."""
    try:
        known = transformers.CONFIG_MAPPING[str(config.get("model_type"))]
        return {**config, **known.from_dict(dict(config)).to_dict()}
    except (*START_ERRORS, ArithmeticError, AttributeError, StrictDataclassError):
        # transformers raises almost anything on a malformed config; vLLM will report it.
        return config
