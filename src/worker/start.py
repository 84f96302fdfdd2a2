"""Reads and checks everything that an engine is started with, its mistakes told all at once."""

import logging
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass

from worker.errors import Mistake, SettingsError, collected
from worker.phases import phase
from worker.settings import EMBEDDER, Settings, engine_environ, is_set, process_environ, unheeded

log = logging.getLogger("worker")

SHARE = "GPU_MEMORY_UTILIZATION"
# Of a GPU's memory. An embedder has no cache that grows with its share, and most are small.
EMBEDDER_SHARE = 0.1
BOTH_SHARES = 0.95


@dataclass(frozen=True)
class Start:
    """What a worker is started with: its settings, and vLLM's arguments for each engine.

    ``options`` are the names of all of vLLM's options.
    """

    settings: Settings
    arguments: Namespace
    embedder: Namespace | None
    options: frozenset[str]


def read(environ: Mapping[str, str] | None = None) -> Start:
    """Read the worker's settings, and vLLM's.

    Imports vLLM, once what it must find in the environment is written.

    Args:
        environ: in place of the process's own.

    Raises:
        SettingsError: the mistakes in the worker's own settings and in vLLM's.
    """
    given = process_environ() if environ is None else environ
    mistakes: list[Mistake] = []
    with collected(mistakes):
        settings = Settings.from_env(given)
        settings.export()
    with phase("import"):
        # Here, because it takes seconds and reads the environment that was just completed.
        from worker.engine import options  # noqa: PLC0415 - see above
    with phase("settings"), collected(mistakes):
        known = options.Options()
        main, beside = engine_environ(given), engine_environ(given, EMBEDDER)
        share, embedders_share = BOTH_SHARES, EMBEDDER_SHARE
        if is_set(f"{EMBEDDER}MODEL_NAME", given):
            with collected(mistakes):
                share, embedders_share = _shares(main, beside)
            # Models that can do both are to embed here.
            beside = {"RUNNER": "pooling", **beside}
            with collected(mistakes):
                embedder = known.parse(beside, EMBEDDER, embedders_share)
        else:
            embedder = None
        arguments = known.parse(main, gpu_share=share)
    if environ is None:
        for warning in unheeded(known.names):
            log.warning(warning)
    if mistakes:
        raise SettingsError(mistakes)
    return Start(settings, arguments, embedder, known.names)


def _shares(main: Mapping[str, str], beside: Mapping[str, str]) -> tuple[float, float]:
    """Divide a GPU's memory between two engines, each of which takes its share at the start.

    Raises:
        SettingsError: there is not enough for both.
    """
    try:
        embedders = float(beside.get(SHARE, EMBEDDER_SHARE))
        share = float(main.get(SHARE, BOTH_SHARES - embedders))
    except ValueError:
        # Told by vLLM's parser, with what is accepted.
        return BOTH_SHARES, EMBEDDER_SHARE
    if share <= 0 or share + embedders > 1:
        told = f"with {SHARE}={share:g} for the model there is no room for it: at most 1 together"
        raise SettingsError([Mistake(EMBEDDER + SHARE, f"{embedders:g}", told)])
    return round(share, 6), embedders
