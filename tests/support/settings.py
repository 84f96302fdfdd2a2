"""Settings as a start reads them, given the variables that are set."""

from collections.abc import Mapping

from worker.engine import start
from worker.engine.machine import Gpu, Machine
from worker.engine.start import Bootstrap
from worker.settings.sources import gather


def gpus(count: int) -> Machine:
    return Machine(cpu=False, gpus=(Gpu("card", 80 << 30),) * count)


def read_settings(environ: Mapping[str, str], machine: Machine | None = None) -> start.Start:
    """Read and check everything that is set, with vLLM's own parser; start no engine."""
    return start.read(Bootstrap.of(gather(environ)), machine)
