"""What the installed vLLM can load, by its registry: no model's code is imported."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import transformers

from worker.engine.seam.locations import find


class Support(StrEnum):
    """How vLLM runs an architecture, if it does."""

    OWN = "vLLM's own"
    # By the code of the transformers library, or of the model's repository.
    TRANSFORMERS = "transformers"
    CODE = "its own code"
    NONE = "none"


def support(architectures: Sequence[str], config: Mapping[str, Any], model_impl: str) -> Support:
    """Return how vLLM runs a model with this config.json, by the rules of its registry.

    Whether code of transformers or of the repository fits vLLM is known only once it is imported.
    """
    if model_impl == "terratorch":
        return Support.OWN
    if model_impl != "transformers" and registered(architectures):
        return Support.OWN
    if model_impl == "vllm" or not architectures:
        return Support.NONE
    own = find("ModelRegistry").get_supported_archs()
    if architectures[0] in own or architectures[0] in dir(transformers):
        return Support.TRANSFORMERS
    auto_map = config.get("auto_map")
    names = auto_map if isinstance(auto_map, Mapping) else ()
    return Support.CODE if any(name.startswith("AutoModel") for name in names) else Support.NONE


def registered(architectures: Sequence[str]) -> list[str]:
    """Return the models in vLLM's registry by which it runs architectures.

    That is a model of the same name, or the one that vLLM adapts to another task:
    ``LlamaForCausalLM`` for ``LlamaForSequenceClassification``.
    """
    own = find("ModelRegistry").get_supported_archs()
    suffixes = [suffix for suffix, _ in find("iter_architecture_defaults")()]
    found: list[str] = []
    for architecture in architectures:
        ending = next(filter(architecture.endswith, suffixes), "")
        stem = architecture.removesuffix(ending)
        names = [architecture, *(stem + suffix for suffix in suffixes if ending)]
        found += [name for name in names if name in own][:1]
    return found


def knows_quantization(method: str) -> bool:
    """Return whether vLLM has a quantisation method, under the name that checkpoints give it."""
    return method in find("QUANTIZATION_METHODS")
