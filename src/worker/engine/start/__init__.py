"""Startup of the engines: ``prepare_startup`` checks the settings and finds or downloads models.

``launch`` then starts the engines. ``tables`` lists the steps that change arguments, all checks,
and the fallbacks after a failure.
"""

import contextlib
import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from worker import masking
from worker.compile_cache import CompileCache, prepare
from worker.engine.arguments import EngineArguments, StartupContext
from worker.engine.start.ahead import ReadAhead
from worker.engine.start.artifacts import EngineArtifacts
from worker.engine.start.needs import artifacts_in_arguments
from worker.errors import StartFailed
from worker.process.garbage import pause_collection
from worker.process.phases import phase
from worker.settings import Settings
from worker.settings.environment import Default
from worker.settings.mistakes import Mistake, SettingsError, collect_mistakes
from worker.settings.names import EMBEDDER_PREFIX, FOREIGN_OPTIONS, SettingNames
from worker.settings.sources import EXTRA_ARGS, RawSettings
from worker.settings.values import redact_setting

if TYPE_CHECKING:
    # Importing these imports vLLM, which reads environment variables that the startup sets first.
    from worker.engine.machine import Machine
    from worker.engine.options import Options

log = logging.getLogger("worker")

WORKER_SETTINGS = frozenset(name.upper() for name in Settings.model_fields)


@dataclass(frozen=True)
class Bootstrap:
    """The validated settings of the worker, after variables for libraries have been exported.

    Attributes:
        raw_settings: All settings that are set, as strings.
        settings: The worker's own settings, with defaults for wrong ones; None if the model's name
            is missing or wrong.
        defaults: Values that the worker chose for libraries' environment variables, as far as they
            are worth logging.
        mistakes: Mistakes found so far, with the operator's spelling of the settings' names.
    """

    raw_settings: RawSettings
    settings: Settings | None
    defaults: tuple[Default, ...] = ()
    mistakes: tuple[Mistake, ...] = ()

    @classmethod
    def from_raw_settings(cls, raw_settings: RawSettings) -> Self:
        """Validate the worker's settings, export libraries' settings, and mask secrets in output.

        A wrong setting does not raise an error, so that the model's download can begin and vLLM can
        report further mistakes.
        """
        mistakes: list[Mistake] = []
        settings = None
        with collect_mistakes(mistakes):
            settings = Settings.from_env(raw_settings.values)
        if mistakes:
            wrong_names = {mistake.name for mistake in mistakes}
            correct_values = {
                name: value
                for name, value in raw_settings.values.items()
                if name not in wrong_names
            }
            with contextlib.suppress(SettingsError):
                settings = Settings.from_env(correct_values)
        defaults = settings.export_variables() if settings else []
        if settings:
            # Secrets from files are not masked yet because they were not in the environment.
            masking.add_secrets(settings.secret_values())
        return cls(
            raw_settings,
            settings,
            tuple(defaults),
            (*raw_settings.mistakes, *map(raw_settings.restore_spelling, mistakes)),
        )


@dataclass(frozen=True)
class StartupPlan:
    """Everything that is needed to start the engines.

    Attributes:
        settings: The worker's own settings.
        engines: The arguments of the main model's engine, then those of an optional embedder.
        context: The machine, and the locations of artifacts.
        option_names: Names of all of vLLM's options that can be settings.
        accepted_settings: Names of the known settings that are set, in the operator's spelling.
        warnings: Warnings about settings that have no effect or are misleading.
        compile_cache: The cache of compiled code; None if it is disabled.
        read_ahead: Stops the child process that reads the weights into the page cache, if there is
            one. It must be closed when the engines have loaded their weights or won't load them.
    """

    settings: Settings
    engines: tuple[EngineArguments, ...]
    context: StartupContext
    option_names: frozenset[str] = frozenset()
    accepted_settings: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    compile_cache: CompileCache | None = None
    read_ahead: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def arguments(self) -> EngineArguments:
        """The arguments of the main model's engine."""
        return self.engines[0]


def prepare_startup(raw_settings: RawSettings, offline: bool = False) -> StartupPlan:
    """Check all settings while the models and other artifacts are found or downloaded.

    Args:
        raw_settings: All settings that are set.
        offline: Whether to disable requests to the hub by libraries, if the store looks for all
            artifacts itself. Downloads by the store remain possible.

    Raises:
        SettingsError: One or more settings are wrong.
        StartFailed: vLLM can't be imported or run on this machine, or a model can't be found or
            downloaded.
    """
    bootstrap = Bootstrap.from_raw_settings(raw_settings)
    settings = bootstrap.settings
    with (
        # Without a model's name, no artifact is searched for: ``plan_startup`` will report the
        # mistake.
        contextlib.closing(
            EngineArtifacts(raw_settings if settings else RawSettings())
        ) as artifacts,
        contextlib.ExitStack() as read_ahead,
    ):
        if offline:
            artifacts.go_offline()
        # The loaders that FAST_LOAD chooses bypass the page cache.
        uses_page_cache = settings and not settings.fast_load
        if child := ReadAhead.start(artifacts.on_disk if uses_page_cache else []):
            read_ahead.callback(child.stop)
        # The cache sets the directory for compiled code, which must happen before vLLM is imported.
        compile_cache = prepare(settings.base_path) if settings and settings.compile_cache else None
        plan = plan_startup(bootstrap)
        needed_artifacts = [
            artifact for engine in plan.engines for artifact in artifacts_in_arguments(engine)
        ]
        context = replace(plan.context, artifact_locations=artifacts.find(needed_artifacts))
        open_read_ahead = read_ahead.pop_all()
    return replace(plan, context=context, compile_cache=compile_cache, read_ahead=open_read_ahead)


def plan_startup(  # noqa: PLR0915 - the story of the settings
    bootstrap: Bootstrap, machine: "Machine | None" = None
) -> StartupPlan:
    """Import vLLM, create its arguments and check all settings.

    Args:
        bootstrap: The worker's settings.
        machine: The machine that the engines run on; this machine by default.

    Raises:
        SettingsError: One or more settings are wrong; the error lists all mistakes.
        StartFailed: vLLM can't be imported in this environment.
        MachineUnfit: vLLM can't run on this machine.
    """
    raw_settings, mistakes = bootstrap.raw_settings, list[Mistake]()
    with phase("import"), pause_collection():
        options = _import_vllm(bootstrap, machine, mistakes)
    with phase("settings"):
        from worker.engine.options.automatic import DEFAULT_GPU_SHARES, divide_memory  # noqa: PLC0415 - imports vLLM
        from worker.engine.start.tables import find_mistakes  # noqa: PLC0415 - imports vLLM

        shares, options_by_prefix = DEFAULT_GPU_SHARES, {"": raw_settings.main_options}
        if "MODEL" in raw_settings.embedder_options:
            with collect_mistakes(mistakes):
                shares = divide_memory(
                    raw_settings.main_options | raw_settings.extra_options,
                    raw_settings.embedder_options,
                )
            # The embedder's model may also be able to generate, but must embed here. Embedders are
            # small, so one GPU is enough.
            options_by_prefix[EMBEDDER_PREFIX] = {
                "RUNNER": "pooling",
                "TENSOR_PARALLEL_SIZE": "1",
                **raw_settings.embedder_options,
            }
        engines: list[EngineArguments] = []
        for prefix, texts in options_by_prefix.items():
            # Names that are both options of vLLM and settings of the worker are left to the worker.
            vllm_options = {
                name: text for name, text in texts.items() if name not in WORKER_SETTINGS
            }
            extra_args = () if prefix else raw_settings.extra_args
            arguments, wrong = options.parse(vllm_options, prefix, shares[prefix], extra_args)
            wrong += find_mistakes(arguments, options.machine)
            mistakes += [replace(mistake, name=prefix + mistake.name) for mistake in wrong]
            if not wrong:
                engines.append(arguments)
        names = _collect_names(bootstrap, options, engines)
        extra_option_names = {name for engine in engines for name in engine.extra_option_names}
        unknown_names, ineffective = names.find_problems(
            {*raw_settings.spellings.values(), *extra_option_names}, raw_settings.files
        )
    mistakes = [*bootstrap.mistakes, *map(raw_settings.restore_spelling, mistakes + unknown_names)]
    wrong_names = {mistake.name for mistake in mistakes}
    warnings = [warning for name, warning in ineffective if name not in wrong_names]
    warnings += _warn_of_misleading_values(raw_settings, extra_option_names)
    if mistakes or bootstrap.settings is None:
        raise SettingsError(mistakes, warnings)
    main, *embedders = (replace(engine, spellings=raw_settings.spellings) for engine in engines)
    main = replace(main, defaults=(*bootstrap.defaults, *main.defaults))
    return StartupPlan(
        settings=bootstrap.settings,
        engines=(main, *embedders),
        context=StartupContext(options.machine, fast_load=bootstrap.settings.fast_load),
        option_names=options.names,
        accepted_settings=tuple(
            sorted(
                raw_settings.spellings[name]
                for name in raw_settings.values.keys() & names.all_settings
            )
        ),
        warnings=tuple(warnings),
    )


def _import_vllm(
    bootstrap: Bootstrap, machine: "Machine | None", mistakes: list[Mistake]
) -> "Options":
    """Import vLLM and check the environment variables that it reads itself.

    Mistakes in the variables are added to ``mistakes``.

    Raises:
        SettingsError: vLLM can't be imported because of a variable; the error lists all mistakes so
            far.
        StartFailed: vLLM can't be imported for another reason, or can't run on this machine.
    """
    values = bootstrap.raw_settings.values
    # The imports take seconds and read the environment, which is complete only now.
    try:
        from worker.engine import variables  # noqa: PLC0415 - see above

        mistakes += variables.find_mistakes(values)
        from worker.engine.options import Options  # noqa: PLC0415 - see above

        return Options(machine)
    except ValueError as error:
        # Before version 0.31, vLLM's import fails at the first wrong variable.
        mistakes = mistakes or [
            Mistake(name, redact_setting(name, value), f"vLLM can't read it: {error}")
            for name, value in values.items()
            if name.startswith("VLLM_") and repr(value) in str(error)
        ]
        if not mistakes:
            raise StartFailed(f"vLLM can't be imported: {error}") from error
        raise SettingsError([*bootstrap.mistakes, *mistakes]) from None


def _collect_names(
    bootstrap: Bootstrap, options: "Options", engines: Sequence[EngineArguments]
) -> SettingNames:
    """Return the names of all settings, with the reasons why some have no effect."""
    ineffective = options.ineffective_options(engines)
    # A file is for the worker only, so these settings can't be meant for another program.
    foreign = FOREIGN_OPTIONS & bootstrap.raw_settings.files.keys()
    ineffective |= dict.fromkeys(foreign, "vLLM's server has no socket of its own in a worker")
    # With mistakes, the values of the worker's settings are not final.
    if bootstrap.settings and not bootstrap.mistakes:
        ineffective |= bootstrap.settings.ineffective_settings()
    return SettingNames(WORKER_SETTINGS, options.names, ineffective, options.variables)


def _warn_of_misleading_values(
    raw_settings: RawSettings, extra_option_names: Collection[str]
) -> Iterator[str]:
    """Yield warnings about values that don't have the effect that they seem to have."""
    for name in sorted(raw_settings.values.keys() & WORKER_SETTINGS):
        value = raw_settings.values[name]
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            yield f"{raw_settings.spellings[name]} stands in quotes, which are part of the value"
    if "DISABLE_LOG_STATS" in extra_option_names:
        flag = "--disable-log-stats"
        yield f"{flag} in {EXTRA_ARGS} has no effect: set DISABLE_LOG_STATS"


def check_base_path(raw_settings: RawSettings) -> Iterator[Mistake]:
    """Yield a mistake if BASE_PATH is set but isn't a readable directory.

    Otherwise models would be downloaded to the container's disk, which a pod loses when it stops.
    """
    path = raw_settings.values.get("BASE_PATH")
    if not path:
        return
    try:
        next(Path(path).iterdir(), None)
    except FileNotFoundError:
        advice = "there is no such directory; in a pod the volume is at /workspace"
    except (OSError, ValueError) as failure:
        advice = f"it can't be read: {getattr(failure, 'strerror', None) or failure}"
    else:
        return
    yield raw_settings.restore_spelling(Mistake("BASE_PATH", path, advice))
