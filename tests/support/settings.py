"""Settings, starts and vLLM's arguments, of engines that no test starts."""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from worker.engine.arguments import EngineArguments
from worker.engine.machine import Gpu, Machine
from worker.engine.start import Start
from worker.settings import Settings
from worker.settings.sources import gather_settings


def start_on(machine: Machine, **settings: Any) -> Start:
    """Return a start of which only the machine and some of the worker's settings are known."""
    return Start(Settings(model_name="org/model", **settings), machine=machine)


def machine_with_gpus(count: int) -> Machine:
    return Machine(cpu=False, gpus=(Gpu("card", 80 << 30),) * count)


def read_settings(environ: Mapping[str, str], machine: Machine | None = None) -> Start:
    """Read and check all settings, with vLLM's own parser, without starting an engine."""
    start = Start.read(gather_settings(environ))
    start.read_options(machine)
    return start


def engine_arguments(prefix: str = "", **changed: Any) -> EngineArguments:
    """Return the arguments of an engine that loads a model, with changes to vLLM's arguments."""
    options = Namespace(
        **{
            "model": "org/name",
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
