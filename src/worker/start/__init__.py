"""Reads and checks everything that an engine is started with, its mistakes told all at once."""

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from worker.compile_cache import CompileCache, prepared
from worker.engine.arguments import EngineArguments
from worker.errors import Mistake, SettingsError, StartFailed, collected
from worker.phases import phase
from worker.settings import Settings
from worker.settings.environment import Default, process_environ
from worker.settings.names import (
    ALIASES,
    EMBEDDER,
    FOR_LIBRARIES,
    OF_OTHERS,
    SPECULATIVE,
    meant,
    removed,
    unheeded,
)
from worker.settings.sources import EXTRA_ARGS, Given, gathered
from worker.start.repositories import Repositories

if TYPE_CHECKING:
    # Only once what vLLM must find in the environment is written.
    from worker.engine.machine import Machine
    from worker.engine.options import Options

log = logging.getLogger("worker")

OWN = frozenset(name.upper() for name in Settings.model_fields)

SHARE = "GPU_MEMORY_UTILIZATION"
# Of a GPU's memory. An embedder has no cache that grows with its share, and most are small.
EMBEDDER_SHARE = 0.1
BOTH_SHARES = 0.95


@dataclass(frozen=True)
class Start:
    """What a worker is started with: its settings, and vLLM's arguments for each engine.

    ``engines`` are the model's, then an embedder's if there is to be one. ``options`` are the names
    of all of vLLM's options; ``heeded`` those settings that are set, as the operator spelt them;
    ``warnings`` what is set without effect; ``compiled`` the cache of what is compiled, if there is
    one.
    """

    settings: Settings
    engines: tuple[EngineArguments, ...]
    options: frozenset[str]
    heeded: tuple[str, ...]
    warnings: tuple[str, ...]
    compiled: CompileCache | None = None

    @property
    def arguments(self) -> EngineArguments:
        return self.engines[0]

    @property
    def embedder(self) -> EngineArguments | None:
        return self.engines[1] if len(self.engines) > 1 else None


def ready(environ: Mapping[str, str] | None = None, offline: bool = False) -> Start:
    """Read all settings, and find or download meanwhile what they name.

    Args:
        environ: in place of the process's own.
        offline: keep the process from asking the hub for anything else.

    Raises:
        SettingsError: the mistakes in the worker's own settings and in vLLM's.
        StartFailed: vLLM can't be imported, or a model is not to be had.
    """
    given = gathered(process_environ() if environ is None else environ)
    with contextlib.closing(Repositories(given)) as repositories:
        if offline:
            repositories.go_offline()
        compiled = _compiled(repositories.settings)
        start = read(environ, chosen=repositories.chosen)
        engines = repositories.place(start.engines)
    return replace(start, engines=engines, compiled=compiled)


def _compiled(settings: Settings | None) -> CompileCache | None:
    """Have vLLM compile to where it can be kept; before it is imported."""
    return prepared(settings.base_path) if settings and settings.compile_cache else None


def read(
    environ: Mapping[str, str] | None = None,
    on: "Machine | None" = None,
    *,
    chosen: Sequence[Default] = (),
) -> Start:
    """Read the worker's settings, and vLLM's.

    Imports vLLM, once what it must find in the environment is written.

    Args:
        environ: in place of the process's own.
        on: what the engine will run on; this machine.
        chosen: what has been chosen for the operator already.

    Raises:
        SettingsError: the mistakes in the worker's own settings and in vLLM's.
        StartFailed: vLLM can't be imported in this environment.
    """
    given = gathered(process_environ() if environ is None else environ)
    mistakes: list[Mistake] = []
    settings, exported = None, list[Default]()
    with collected(mistakes):
        settings = Settings.from_env(given.values)
        exported = [*chosen, *settings.export()]
    with phase("import"):
        # Here, because it takes seconds and reads the environment that was just completed.
        from worker.engine import variables  # noqa: PLC0415 - see above

        unreadable = [] if environ is not None else [*variables.wrong(given.values)]
        try:
            from worker.engine.options import Options  # noqa: PLC0415 - likewise

            known = Options(on)
        except ValueError as error:
            # Of a variable that is read on import: what else is wrong vLLM can't be asked then.
            if not unreadable:
                raise StartFailed(f"vLLM can't be imported: {error}") from error
            raise SettingsError([*given.mistakes, *mistakes, *unreadable]) from None
    with phase("settings"):
        arguments, embedder = _arguments(given, known, mistakes)
        mistakes += [*_unknown_in_files(given, known), *unreadable]
    told = {mistake.name for mistake in mistakes}
    idle = _idle(given, known, settings, arguments, embedder)
    set_ = {*given.written.values(), *(arguments.extra if arguments else ())} - told
    warnings = unheeded(set_, OWN, known.names, idle, variables.NAMES) + _odd(given, arguments)
    if given.mistakes or mistakes or settings is None or arguments is None:
        raise SettingsError([*given.mistakes, *map(given.told, mistakes)], warnings)
    main = replace(arguments, defaults=(*exported, *arguments.defaults))
    engines = (main, embedder) if embedder else (main,)
    return Start(settings, engines, known.names, _heeded(given, known), tuple(warnings))


def _heeded(given: Given, known: "Options") -> tuple[str, ...]:
    """Return the settings that are set, as the operator spelt them."""
    names = OWN | known.names | ALIASES.keys()
    names |= {EMBEDDER + name for name in names}
    return tuple(sorted(given.written[name] for name in given.written.keys() & names))


def _arguments(
    given: Given, known: "Options", mistakes: list[Mistake]
) -> tuple[EngineArguments | None, EngineArguments | None]:
    """Make vLLM's arguments, for the model and for an embedder if there is to be one."""
    main, beside = _options(given), _options(given, EMBEDDER)
    arguments, embedder = None, None
    share, embedders_share = BOTH_SHARES, EMBEDDER_SHARE
    if "MODEL" in beside:
        with collected(mistakes):
            share, embedders_share = _shares(main, beside)
        with collected(mistakes):
            # Models that can do both are to embed here. They are small: one GPU will do.
            beside = {"RUNNER": "pooling", "TENSOR_PARALLEL_SIZE": "1", **beside}
            embedder = known.parse(beside, EMBEDDER, embedders_share)
    with collected(mistakes):
        arguments = known.parse(main, gpu_share=share, extra=given.extra)
    if arguments and embedder and not mistakes and not known.machine.cpu:
        shares = (each.vllm.gpu_memory_utilization for each in (arguments, embedder))
        with collected(mistakes):
            _shares(*({SHARE: str(share)} for share in shares))
    return arguments, embedder


def _options(given: Given, prefix: str = "") -> dict[str, str]:
    """Select vLLM's options; a name that the worker has a setting of, too, is the worker's."""
    return {name: value for name, value in given.options(prefix).items() if name not in OWN}


def _unknown_in_files(given: Given, known: "Options") -> list[Mistake]:
    """Refuse what a file sets that is no setting: unlike the environment a file is for us only."""
    names = OWN | known.names | ALIASES.keys() | SPECULATIVE.keys()
    names |= {EMBEDDER + name for name in names} | OF_OTHERS | known.idle(None).keys()
    mistakes = []
    for name in given.files.keys() - names:
        if name in FOR_LIBRARIES:
            mistakes.append(Mistake(name, "...", "only the environment can set it"))
        elif not removed(name):
            right = meant(name, names)
            advice = f"no setting: did you mean {right}?" if right else "no setting"
            # It may be anything, also a secret.
            mistakes.append(Mistake(name, "...", advice))
    return mistakes


def _odd(given: Given, arguments: EngineArguments | None) -> list[str]:
    """Say what is heeded otherwise than it looks."""
    named = {name: given.values[name] for name in sorted(given.values.keys() & OWN)}
    odd = [
        f"{given.written[name]} stands in quotes, which are part of the value"
        for name, value in named.items()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    ]
    if "DISABLE_LOG_STATS" in (arguments.extra if arguments else ()):
        odd.append(f"--disable-log-stats in {EXTRA_ARGS} has no effect: set DISABLE_LOG_STATS")
    return odd


def _idle(
    given: Given,
    known: "Options",
    settings: Settings | None,
    arguments: EngineArguments | None,
    embedder: EngineArguments | None,
) -> dict[str, str]:
    """Say why settings have no effect beside others, by name."""
    idle = known.idle(arguments) | known.idle(embedder, EMBEDDER)
    if settings is None:
        return idle
    of_files = OF_OTHERS & given.files.keys()
    idle |= dict.fromkeys(of_files, "vLLM's server has no socket of its own in a worker")
    whole = f"every chunk holds DEFAULT_BATCH_SIZE={settings.default_batch_size} tokens"
    if settings.default_min_batch_size >= settings.default_batch_size:
        idle["DEFAULT_MIN_BATCH_SIZE"] = f"it is not below DEFAULT_BATCH_SIZE, so {whole}"
    elif 0 < settings.default_batch_size_growth_factor <= 1:
        idle["DEFAULT_BATCH_SIZE_GROWTH_FACTOR"] = f"it is not above 1, so {whole}"
    return idle


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
        if embedders == EMBEDDER_SHARE and SHARE in main:
            told = f"with {embedders:g} for the embedder there is not enough: at most 1 together"
            example = f"{1 - embedders:g}"
            raise SettingsError([Mistake(SHARE, f"{share:g}", told, example)])
        raise SettingsError([Mistake(EMBEDDER + SHARE, f"{embedders:g}", told)])
    return round(share, 6), embedders
