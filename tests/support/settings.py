"""Settings as a worker reads them at startup."""

from collections.abc import Mapping
from typing import Any

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
