"""Reads and checks everything that engines are started with, and reports all mistakes at once.

Checks stand in four places: names in ``worker.settings.names``; values where each is converted
(``worker.settings``, ``worker.engine.options.option``, ``worker.engine.variables``); combinations
in ``worker.engine.options.combinations``; what the machine can't give in ``worker.engine.gpus``.
"""

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from worker.compile_cache import CompileCache, prepare
from worker.engine.arguments import EngineArguments
from worker.engine.gpus import EMBEDDER_SHARE, GPU_SHARE, divide_memory
from worker.engine.start import ahead
from worker.engine.start.bootstrap import Bootstrap
from worker.engine.start.repositories import Repositories
from worker.errors import StartFailed
from worker.garbage import uncollected
from worker.phases import phase
from worker.settings import Settings
from worker.settings.environment import given_environ
from worker.settings.mistakes import Mistake, SettingsError, collected
from worker.settings.names import EMBEDDER, FOREIGN, Names
from worker.settings.sources import EXTRA_ARGS, Given, gather, options_of
from worker.settings.values import redact_setting

if TYPE_CHECKING:
    # Imports vLLM, which reads variables that a start has to write first.
    from worker.engine.machine import Machine
    from worker.engine.options import Options

log = logging.getLogger("worker")

OWN = frozenset(name.upper() for name in Settings.model_fields)


@dataclass(frozen=True)
class Start:
    """Everything that a worker is started with.

    Attributes:
        settings: the worker's own.
        engines: the arguments of the model's engine, then those of an embedder's, if there is one.
        options: names of all of vLLM's options.
        accepted: settings that are set, in the operator's spelling.
        warnings: what is set without effect.
        compile_cache: None if nothing is kept.
    """

    settings: Settings
    engines: tuple[EngineArguments, ...]
    options: frozenset[str]
    accepted: tuple[str, ...]
    warnings: tuple[str, ...]
    compile_cache: CompileCache | None = None

    @property
    def arguments(self) -> EngineArguments:
        """Of the model's engine."""
        return self.engines[0]

    @property
    def embedder(self) -> EngineArguments | None:
        return self.engines[1] if len(self.engines) > 1 else None


def ready(environ: Mapping[str, str] | None = None, offline: bool = False) -> Start:
    """Read all settings, and find or download meanwhile what they name.

    Weights that are on the disk are read ahead meanwhile, until ``ahead.end_all``.

    Args:
        environ: in place of the process's own.
        offline: keep the process from asking the hub for anything else.

    Raises:
        SettingsError: mistakes in the settings.
        StartFailed: vLLM can't be imported, or a model can't be found or downloaded.
    """
    bootstrap = Bootstrap.of(gather(given_environ() if environ is None else environ))
    with (
        contextlib.closing(Repositories(bootstrap)) as repositories,
        contextlib.ExitStack() as failed,
    ):
        failed.callback(ahead.end_all)
        if offline:
            repositories.go_offline()
        # The loaders that FAST_LOAD chooses read around the page cache.
        if bootstrap.settings and not bootstrap.settings.fast_load:
            ahead.begin(repositories.on_disk)
        # Before vLLM is imported: it compiles to where the cache says.
        compile_cache = _compile_cache(bootstrap.settings)
        start = read(bootstrap)
        engines = repositories.place(start.engines)
        failed.pop_all()
    return replace(start, engines=engines, compile_cache=compile_cache)


def _compile_cache(settings: Settings | None) -> CompileCache | None:
    return prepare(settings.base_path) if settings and settings.compile_cache else None


def read(bootstrap: Bootstrap, machine: "Machine | None" = None) -> Start:
    """Import vLLM, make its arguments, and check everything that is set.

    Args:
        bootstrap: the worker's own settings, and the text of all others.
        machine: what engines will run on; by default this machine.

    Raises:
        SettingsError: all mistakes.
        StartFailed: vLLM can't be imported in this environment.
    """
    given, mistakes = bootstrap.given, list[Mistake]()
    with phase("import"), uncollected():
        options = _import_vllm(bootstrap, machine, mistakes)
    with phase("settings"):
        engines = _engines(given, options, mistakes)
        names = _names(bootstrap, options, engines)
        mistakes += names.unknown_in_files(given.files)
    mistakes = [*bootstrap.mistakes, *map(given.as_written, mistakes)]
    warnings = _warnings(given, names, engines, mistakes)
    if mistakes or bootstrap.settings is None:
        raise SettingsError(mistakes, warnings)
    main, *embedder = (replace(engine, written=given.written) for engine in engines)
    main = replace(main, defaults=(*bootstrap.defaults, *main.defaults))
    return Start(
        settings=bootstrap.settings,
        engines=(main, *embedder),
        options=options.names,
        accepted=tuple(
            sorted(given.written[name] for name in given.values.keys() & names.settings)
        ),
        warnings=tuple(warnings),
    )


def _import_vllm(
    bootstrap: Bootstrap, machine: "Machine | None", mistakes: list[Mistake]
) -> "Options":
    """Import vLLM, and check the variables that it reads itself.

    Raises:
        SettingsError: vLLM can't be imported because of one of them; with all mistakes so far.
        StartFailed: vLLM can't be imported for another reason.
    """
    values = bootstrap.given.values
    # Here, since this takes seconds and reads the environment that was just completed.
    try:
        from worker.engine import variables  # noqa: PLC0415 - see above

        mistakes += variables.wrong(values)
        from worker.engine.options import Options  # noqa: PLC0415 - likewise

        return Options(machine)
    except ValueError as error:
        mistakes = mistakes or _shown_by(error, values)
        if not mistakes:
            raise StartFailed(f"vLLM can't be imported: {error}") from error
        raise SettingsError([*bootstrap.mistakes, *mistakes]) from None


def _shown_by(error: ValueError, values: Mapping[str, str]) -> list[Mistake]:
    """Find the variables that ended vLLM's import: before 0.31 it ends at the first wrong one."""
    return [
        Mistake(name, redact_setting(name, value), f"vLLM can't read it: {error}")
        for name, value in values.items()
        if name.startswith("VLLM_") and repr(value) in str(error)
    ]


def _engines(
    given: Given, options: "Options", mistakes: list[Mistake]
) -> tuple[EngineArguments, ...]:
    """Make the arguments of each engine, except where there are mistakes."""
    main, embedder = _options(given), _options(given, EMBEDDER)
    named = "MODEL" in embedder
    share, embedders_share = GPU_SHARE, EMBEDDER_SHARE
    engines = []
    if named:
        with collected(mistakes):
            share, embedders_share = divide_memory(main | options_of(given.extra), embedder)
    with collected(mistakes):
        engines.append(options.parse(main, gpu_share=share, extra=given.extra))
    if named:
        # A model that can also generate is to embed here. Embedders are small: one GPU will do.
        values = {"RUNNER": "pooling", "TENSOR_PARALLEL_SIZE": "1", **embedder}
        with collected(mistakes):
            engines.append(options.parse(values, EMBEDDER, embedders_share))
    return tuple(engines)


def _options(given: Given, prefix: str = "") -> dict[str, str]:
    """Return vLLM's options, but for names that are also settings of the worker's own."""
    return {name: value for name, value in given.options(prefix).items() if name not in OWN}


def _names(bootstrap: Bootstrap, options: "Options", engines: Sequence[EngineArguments]) -> Names:
    """Return the names of all settings, with the reasons why some have no effect."""
    idle = options.idle(engines)
    # A file is for the worker only, so these can't be another program's.
    others = FOREIGN & bootstrap.given.files.keys()
    idle |= dict.fromkeys(others, "vLLM's server has no socket of its own in a worker")
    # With a mistake among them it isn't clear what the worker's own amount to.
    if bootstrap.settings and not bootstrap.mistakes:
        idle |= bootstrap.settings.idle()
    return Names(OWN, options.names, idle, options.variables)


def _warnings(
    given: Given, names: Names, engines: Sequence[EngineArguments], mistakes: Sequence[Mistake]
) -> list[str]:
    """Warn of what has no effect, or another one than it seems to."""
    wrong = {mistake.name for mistake in mistakes}
    extra = {name for arguments in engines for name in arguments.extra}
    warnings = names.without_effect({*given.written.values(), *extra} - wrong)
    for name in sorted(given.values.keys() & OWN):
        value = given.values[name]
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            warnings.append(f"{given.written[name]} stands in quotes, which are part of the value")
    if "DISABLE_LOG_STATS" in extra:
        flag = "--disable-log-stats"
        warnings.append(f"{flag} in {EXTRA_ARGS} has no effect: set DISABLE_LOG_STATS")
    return warnings
