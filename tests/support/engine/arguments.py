"""vLLM's arguments that determine the files which an engine loads."""

from argparse import Namespace
from typing import Any

from support.hub.caches import NAME
from worker.engine.arguments import EngineArguments


def engine_arguments(prefix: str = "", **changed: Any) -> EngineArguments:
    """Return the arguments of an engine that loads a model, with changes to vLLM's arguments."""
    options = Namespace(
        **{
            "model": NAME,
            "revision": "v1",
            "tokenizer": None,
            "tokenizer_revision": None,
            "skip_tokenizer_init": False,
            "load_format": "auto",
            "download_dir": None,
            "trust_remote_code": False,
            "lora_modules": None,
            "speculative_config": None,
            **changed,
        }
    )
    return EngineArguments(options, options.model, prefix)
