"""A start: ``ready`` reads the settings and finds the models, ``launch`` starts the engines.

``tables`` lists the steps that arguments go through, all checks, and what follows a failure.
"""

import contextlib
import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from worker import masking
from worker.compile_cache import CompileCache, prepare
from worker.engine.arguments import EngineArguments, StartContext
from worker.engine.start.ahead import ReadAhead
from worker.engine.start.needs import wanted_by_arguments
from worker.engine.start.repositories import Repositories
from worker.errors import StartFailed
from worker.process.garbage import uncollected
from worker.process.phases import phase
from worker.settings import Settings
from worker.settings.environment import Default
from worker.settings.mistakes import Mistake, SettingsError, collected
from worker.settings.names import EMBEDDER, FOREIGN, Names
from worker.settings.sources import EXTRA_ARGS, Given
from worker.settings.values import redact_setting

if TYPE_CHECKING:
    # Imports vLLM, which reads variables that a start has to write first.
    from worker.engine.machine import Machine
    from worker.engine.options import Options

log = logging.getLogger("worker")

OWN = frozenset(name.upper() for name in Settings.model_fields)


@dataclass(frozen=True)
class Bootstrap:
    """The worker's settings, made once and exported to the process's environment.

    Attributes:
        settings: the worker's own, wrong ones at their defaults; None if no model is named.
        defaults: values of libraries' variables that the worker chose.
        mistakes: those found so far, in the operator's spelling.
    """

    given: Given
    settings: Settings | None
    defaults: tuple[Default, ...] = ()
    mistakes: tuple[Mistake, ...] = ()

    @classmethod
    def of(cls, given: Given) -> Self:
        """Make the worker's settings, and write what libraries read into the environment.

        A wrong setting doesn't end this: the model's download can begin, and vLLM can be asked
        what else is wrong.
        """
        mistakes: list[Mistake] = []
        settings = None
        with collected(mistakes):
            settings = Settings.from_env(given.values)
        if mistakes:
            wrong = {mistake.name for mistake in mistakes}
            right = {name: value for name, value in given.values.items() if name not in wrong}
            with contextlib.suppress(SettingsError):
                settings = Settings.from_env(right)
        defaults = settings.export() if settings else []
        if settings:
            # Those of files, which were not in the environment.
            masking.hide(settings.secrets())
        return cls(
            given, settings, tuple(defaults), (*given.mistakes, *map(given.as_written, mistakes))
        )


@dataclass(frozen=True)
class Start:
    """Everything that a worker is started with.

    Attributes:
        engines: the arguments of the model's engine, then those of an embedder's, if there is one.
        options: names of all of vLLM's options.
        accepted: settings that are set, in the operator's spelling.
        warnings: what is set without effect.
        compile_cache: None if nothing is kept.
        read_ahead: closed when the engines have loaded their weights, or won't: until then a child
            reads them into the page cache.
    """

    settings: Settings
    engines: tuple[EngineArguments, ...]
    context: StartContext
    options: frozenset[str] = frozenset()
    accepted: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    compile_cache: CompileCache | None = None
    read_ahead: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def arguments(self) -> EngineArguments:
        """Of the model's engine."""
        return self.engines[0]


def ready(given: Given, offline: bool = False) -> Start:
    """Read all settings, and find or download meanwhile what they name.

    With ``offline`` the process asks the hub for nothing else.

    Raises:
        SettingsError: mistakes in the settings.
        StartFailed: vLLM can't be imported, or a model can't be found or downloaded.
    """
    bootstrap = Bootstrap.of(given)
    settings = bootstrap.settings
    with (
        # Without a model's name nothing is looked for yet.
        contextlib.closing(Repositories(given if settings else Given())) as repositories,
        contextlib.ExitStack() as read_ahead,
    ):
        if offline:
            repositories.go_offline()
        # The loaders that FAST_LOAD chooses read around the page cache.
        cached = settings and not settings.fast_load
        if child := ReadAhead.of(repositories.on_disk if cached else []):
            read_ahead.callback(child.end)
        # Before vLLM is imported: it compiles to where the cache says.
        compile_cache = prepare(settings.base_path) if settings and settings.compile_cache else None
        start = read(bootstrap)
        wanted = [one for engine in start.engines for one in wanted_by_arguments(engine)]
        context = replace(start.context, found=repositories.find(wanted))
        lasting = read_ahead.pop_all()
    return replace(start, context=context, compile_cache=compile_cache, read_ahead=lasting)


def read(bootstrap: Bootstrap, machine: "Machine | None" = None) -> Start:
    """Import vLLM, make its arguments for this or another machine, and check all that is set.

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
        extra = {name for engine in engines for name in engine.extra}
        unknown, unused = names.problems({*given.written.values(), *extra}, given.files)
    mistakes = [*bootstrap.mistakes, *map(given.as_written, mistakes + unknown)]
    wrong = {mistake.name for mistake in mistakes}
    warnings = [warning for name, warning in unused if name not in wrong]
    warnings += _misleading(given, extra)
    if mistakes or bootstrap.settings is None:
        raise SettingsError(mistakes, warnings)
    main, *embedder = (replace(engine, written=given.written) for engine in engines)
    main = replace(main, defaults=(*bootstrap.defaults, *main.defaults))
    return Start(
        settings=bootstrap.settings,
        engines=(main, *embedder),
        context=StartContext(options.machine, fast_load=bootstrap.settings.fast_load),
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
        # Before 0.31 the import ends at the first variable that is wrong.
        mistakes = mistakes or [
            Mistake(name, redact_setting(name, value), f"vLLM can't read it: {error}")
            for name, value in values.items()
            if name.startswith("VLLM_") and repr(value) in str(error)
        ]
        if not mistakes:
            raise StartFailed(f"vLLM can't be imported: {error}") from error
        raise SettingsError([*bootstrap.mistakes, *mistakes]) from None


def _engines(
    given: Given, options: "Options", mistakes: list[Mistake]
) -> tuple[EngineArguments, ...]:
    """Make and check the arguments of each engine; those with mistakes are left out."""
    from worker.engine.options.automatic import SHARES, divide_memory  # noqa: PLC0415 - imports vLLM
    from worker.engine.start.tables import mistakes_in  # noqa: PLC0415 - likewise

    shares, values = SHARES, {"": given.main}
    if "MODEL" in given.embedder:
        with collected(mistakes):
            shares = divide_memory(given.main | given.from_extra, given.embedder)
        # A model that can also generate is to embed here. Embedders are small: one GPU will do.
        values[EMBEDDER] = {"RUNNER": "pooling", "TENSOR_PARALLEL_SIZE": "1", **given.embedder}
    engines = []
    for prefix, texts in values.items():
        # But for names that are also settings of the worker's own.
        own = {name: text for name, text in texts.items() if name not in OWN}
        extra = () if prefix else given.extra
        arguments, wrong = options.parse(own, prefix, shares[prefix], extra)
        wrong += mistakes_in(arguments, options.machine)
        mistakes += [replace(mistake, name=prefix + mistake.name) for mistake in wrong]
        if not wrong:
            engines.append(arguments)
    return tuple(engines)


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


def _misleading(given: Given, extra: Collection[str]) -> Iterator[str]:
    """Warn of values that mean something else than they seem to."""
    for name in sorted(given.values.keys() & OWN):
        value = given.values[name]
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            yield f"{given.written[name]} stands in quotes, which are part of the value"
    if "DISABLE_LOG_STATS" in extra:
        flag = "--disable-log-stats"
        yield f"{flag} in {EXTRA_ARGS} has no effect: set DISABLE_LOG_STATS"


def unreadable_volume(given: Given) -> Iterator[Mistake]:
    """Find that BASE_PATH is set and no directory: a download would be lost with a pod."""
    place = given.values.get("BASE_PATH")
    if not place:
        return
    try:
        next(Path(place).iterdir(), None)
    except FileNotFoundError:
        advice = "there is no such directory; in a pod the volume is at /workspace"
    except (OSError, ValueError) as failure:
        advice = f"it can't be read: {getattr(failure, 'strerror', None) or failure}"
    else:
        return
    yield given.as_written(Mistake("BASE_PATH", place, advice))
