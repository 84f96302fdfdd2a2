"""What vLLM knows of a model without its weights: by its registry, and by its configuration."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from textwrap import shorten
from typing import Any

import transformers
from huggingface_hub.errors import StrictDataclassError
from pydantic import ValidationError

from worker.engine.arguments import EngineArguments
from worker.engine.options.option import reasons
from worker.engine.seam.locations import find
from worker.engine.seam.translation import START_ERRORS
from worker.errors import StartFailed, in_settings
from worker.settings.environment import overwrite, process_environ

# What vLLM and transformers raise for a configuration that is malformed.
MALFORMED = (*START_ERRORS, ArithmeticError, AssertionError, AttributeError, StrictDataclassError)

# What the names of vLLM's models begin with that run transformers' code.
_BACKENDS = "Transformers"
ALLOW_LONG = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
# More tokens than any text has.
_ENDLESS = 2**31
# Characters of a refusal: some list all that vLLM has.
_REASON = 300

UNSERVED = "the model does nothing but write down speech, and no route of the worker serves that"


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


@dataclass(frozen=True)
class ModelShape:
    """What decides how a model may be divided, and how long a text may be.

    Attributes:
        heads: attention heads of a layer.
        length: tokens of the longest text that the model is served with by default.
        longest: the largest such length that vLLM accepts; None if it accepts any.
        length_key: the key of config.json that limits the length; empty if there is none.
        served: whether a route of the worker can use the model.
    """

    heads: int
    length: int
    longest: int | None
    length_key: str
    served: bool


def create_model_config(arguments: EngineArguments) -> Any:
    """Return vLLM's ``ModelConfig``, as a start makes it."""
    return find("AsyncEngineArgs").from_cli_args(arguments.vllm).create_model_config()


def load_classes(architectures: Sequence[str]) -> None:
    """Import the models' code: vLLM would do so in a process that has to import vLLM first."""
    registry = find("ModelRegistry")
    names = registered(architectures)
    if {*architectures} - {*names}:
        # Those that vLLM may run by transformers' code.
        names += [name for name in registry.get_supported_archs() if name.startswith(_BACKENDS)]
    for name in names:
        registry.register_model(name, registry.models[name].load_model_cls())


def read_model_shape(arguments: EngineArguments, architectures: Sequence[str]) -> ModelShape:
    """Return a model's shape as vLLM reads it from a directory with at least its config.json.

    Raises:
        StartFailed: vLLM refuses the model, or the arguments for it.
    """
    try:
        load_classes(architectures)
        # A length that is too large would be refused before anything else is known.
        config = create_model_config(arguments.with_options(max_model_len=None))
        architecture = config.model_arch_config
        return ModelShape(
            heads=architecture.total_num_attention_heads,
            length=config.max_model_len,
            longest=_longest(config),
            length_key=architecture.derived_max_model_len_and_key[1] or "",
            served=is_served(config),
        )
    except MALFORMED as error:
        raise StartFailed(reason(error)) from error


def reason(error: Exception) -> str:
    """Return vLLM's reason for a refusal in one line, with settings in place of its options."""
    text = reasons(error) if isinstance(error, ValidationError) else str(error)
    return in_settings(shorten(text, _REASON, placeholder=" ...") or type(error).__name__)


def is_served(config: Any) -> bool:
    """Return whether a route of the worker can use a model, by vLLM's ``ModelConfig`` of it."""
    return not config.registry.is_transcription_only_model(config.architectures, config)


def _longest(config: Any) -> int | None:
    """Return the largest length that vLLM accepts, None if it accepts any, by trying lengths."""

    def refused(length: int) -> bool:
        try:
            config.get_and_verify_max_len(length)
        except ValueError:
            return True
        return False

    # vLLM is to say which lengths are too long, even if it is told to allow them.
    allowed = process_environ().get(ALLOW_LONG, "0")
    overwrite(ALLOW_LONG, "0")
    try:
        longest = bisect_left(range(_ENDLESS), True, lo=1, key=refused) - 1
    finally:
        overwrite(ALLOW_LONG, allowed)
    return None if longest == _ENDLESS - 1 else longest
