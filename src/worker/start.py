"""Reads and checks everything that an engine is started with, its mistakes told all at once."""

import logging
from argparse import Namespace
from collections.abc import Mapping

from worker.errors import Mistake, SettingsError, collected
from worker.phases import phase
from worker.settings import Settings, engine_environ, process_environ, unheeded

log = logging.getLogger("worker")


def read(environ: Mapping[str, str] | None = None) -> tuple[Settings, Namespace, frozenset[str]]:
    """Return the worker's settings, vLLM's arguments, and the names of all of vLLM's options.

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
        arguments = known.parse(engine_environ(given))
    if environ is None:
        for warning in unheeded(known.names):
            log.warning(warning)
    if mistakes:
        raise SettingsError(mistakes)
    return settings, arguments, known.names
