"""Settings as a worker reads them at startup."""

from collections.abc import Mapping

from worker.engine import start
from worker.engine.machine import Gpu, Machine
from worker.engine.start import BootstrapSettings
from worker.settings.sources import gather_settings


def machine_with_gpus(count: int) -> Machine:
    return Machine(cpu=False, gpus=(Gpu("card", 80 << 30),) * count)


def read_settings(environ: Mapping[str, str], machine: Machine | None = None) -> start.StartupPlan:
    """Read and check all settings, with vLLM's own parser, without starting an engine."""
    return start.plan_startup(
        BootstrapSettings.validate_and_export(gather_settings(environ)), machine
    )
