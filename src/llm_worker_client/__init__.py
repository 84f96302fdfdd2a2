"""Client for deployed endpoints, with features that the platform's gateway drops; needs no GPU."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from llm_worker_client.transport import AsyncRunpodTransport, RunpodTransport

if TYPE_CHECKING:
    from llm_worker_client.llm import LLM, SamplingParams
    from llm_worker_client.llm_engine import Completion, File, FineTune, Model, configure

# Version of this package.
__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncRunpodTransport",
    "Completion",
    "File",
    "FineTune",
    "Model",
    "RunpodTransport",
    "SamplingParams",
    "configure",
]


_LLM_NAMES = ("LLM", "SamplingParams")


def __getattr__(name: str) -> Any:
    # Import pydantic and tqdm only for programs that use the classes in __all__.
    if name in __all__:
        module = "llm" if name in _LLM_NAMES else "llm_engine"
        return getattr(import_module(f"llm_worker_client.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
