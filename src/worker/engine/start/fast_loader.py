"""Chooses a loader that reads weights onto GPUs faster than vLLM's own, where one is installed."""

from importlib.util import find_spec
from pathlib import Path

from worker.engine.arguments import EngineArguments
from worker.engine.machine import Machine
from worker.engine.start.load_strategy import disk_of, is_network, weights
from worker.settings.environment import Default

LOAD_FORMAT = "LOAD_FORMAT"
SETTING = "FAST_LOAD"

# vLLM's load formats for GPUs, the fastest first, by the packages that they need.
LOADERS = {
    "instanttensor": "instanttensor",
    "fastsafetensors": "fastsafetensors",
    "runai_streamer": "runai_model_streamer",
}
# The others read around the page cache, which a network file system need not allow.
_OVER_NETWORK = {"runai_streamer"}
# Refused by vLLM for a draft model with pipeline parallelism.
_ONE_STAGE = {"fastsafetensors"}
# Options by which the operator chooses how weights are read.
_CHOICES = {LOAD_FORMAT, "SAFETENSORS_LOAD_STRATEGY", "MODEL_LOADER_EXTRA_CONFIG"}
# Weights that vLLM reads in Mistral's format, which is not among the loaders'.
_MISTRALS = "consolidated"


def with_fast_loader(arguments: EngineArguments, machine: Machine) -> EngineArguments:
    """Choose the fastest loader that the machine, the disk and the weights' format allow.

    Args:
        arguments: of an engine, once its model was found.
        machine: what the engine runs on.

    Returns:
        The same if there is none, or the operator has chosen how weights are read.
    """
    files = weights(Path(arguments.vllm.model))
    foreign = any(file.name.startswith(_MISTRALS) for file in files)
    if machine.cpu or _CHOICES & arguments.given or not files or foreign:
        return arguments
    fitting = set(LOADERS)
    disk = disk_of(files[0])
    if is_network(disk):
        fitting &= _OVER_NETWORK
    if arguments.vllm.pipeline_parallel_size > 1:
        fitting -= _ONE_STAGE
    chosen = next((name for name in LOADERS if name in fitting and find_spec(LOADERS[name])), None)
    if chosen is None:
        return arguments
    why = f"{SETTING}: the fastest loader that is installed, for weights on {disk or 'this disk'}"
    return arguments.with_default(Default(LOAD_FORMAT, chosen, why), chosen)


def with_own_loader(arguments: EngineArguments) -> EngineArguments:
    """Return the arguments with vLLM's own loader; the same if no other was chosen for them."""
    if all(default.name != LOAD_FORMAT for default in arguments.defaults):
        return arguments
    failed = arguments.vllm.load_format
    return arguments.with_default(Default(LOAD_FORMAT, "auto", f"{failed} failed"), "auto")
