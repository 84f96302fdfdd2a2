"""Startup: ``plan_and_fetch_models`` checks the settings and finds or downloads models.

``launch`` then starts the engines. ``tables`` lists the steps, checks and fallbacks.
"""

import contextlib
import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from worker import masking
from worker.compile_cache import CompileCache, set_up_compile_cache
from worker.engine.arguments import EngineArguments, StartupContext
from worker.engine.start.ahead import ReadAhead
from worker.engine.start.artifacts import EngineArtifacts
from worker.engine.start.needs import artifacts_in_arguments
from worker.errors import StartFailed
from worker.process.garbage import pause_and_freeze_gc
from worker.process.phases import log_phase
from worker.settings import Settings
from worker.settings.environment import ChosenDefault
from worker.settings.mistakes import Mistake, SettingsError, collect_mistakes
from worker.settings.names import EMBEDDER_PREFIX, FOREIGN_OPTIONS, SettingNames
from worker.settings.sources import EXTRA_ARGS, RawSettings
from worker.settings.values import redact_by_setting_name
from worker.volume.location import VolumeLocation

if TYPE_CHECKING:
    # These modules import vLLM, which reads environment variables that the startup sets first.
    from worker.engine.machine import Machine
    from worker.engine.options import Options

log = logging.getLogger("worker")

WORKER_SETTINGS = frozenset(name.upper() for name in Settings.model_fields)


@dataclass(frozen=True)
class BootstrapSettings:
    """The validated settings of the worker, after variables for libraries have been exported.

    Attributes:
        raw_settings: All settings that are set, as strings.
        settings: The worker's own, with defaults for wrong ones; None without a valid MODEL_NAME.
        defaults: Values that the worker chose for libraries' variables, if worth logging.
        mistakes: Mistakes found so far, with the operator's spelling of the settings' names.
    """

    raw_settings: RawSettings
    settings: Settings | None
    defaults: tuple[ChosenDefault, ...] = ()
    mistakes: tuple[Mistake, ...] = ()

    @classmethod
    def validate_and_export(cls, raw: RawSettings) -> Self:
        """Validate the worker's settings, set libraries' variables, and mask secrets in output.

        A wrong setting does not raise an error, so that the model's download can begin and vLLM can
        report further mistakes.
        """
        mistakes: list[Mistake] = []
        settings = None
        with collect_mistakes(mistakes):
            settings = Settings.from_env(raw.values)
        if mistakes:
            wrong = {mistake.name for mistake in mistakes}
            valid = {name: value for name, value in raw.values.items() if name not in wrong}
            with contextlib.suppress(SettingsError):
                settings = Settings.from_env(valid)
        defaults = settings.export_library_variables() if settings else []
        # Secrets from files are not masked yet because they were not in the environment.
        masking.add_url_credentials(raw.values.values())
        if settings:
            masking.add_secrets(settings.secret_values())
        return cls(
            raw, settings, tuple(defaults), (*raw.mistakes, *map(raw.restore_spelling, mistakes))
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
        read_ahead: Closing this stops the child process that reads the weights into the page cache,
            if any. It must be closed when the engines have loaded the weights or won't load them.
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
    def main_arguments(self) -> EngineArguments:
        """The arguments of the main model's engine."""
        return self.engines[0]


def plan_and_fetch_models(raw: RawSettings, offline: bool = False) -> StartupPlan:
    """Check all settings while the models and other artifacts are found or downloaded.

    With ``offline``, libraries make no requests to the hub if the store looks for all artifacts.
    The store itself may still download them.

    Raises:
        SettingsError: One or more settings are wrong.
        StartFailed: vLLM can't be imported or run here, or a model can't be found or downloaded.
    """
    bootstrap = BootstrapSettings.validate_and_export(raw)
    settings = bootstrap.settings
    with (
        # Without a valid MODEL_NAME, search for nothing: ``plan_startup`` reports the mistake.
        contextlib.closing(EngineArtifacts(raw if settings else RawSettings())) as artifacts,
        contextlib.ExitStack() as read_ahead,
    ):
        if offline:
            artifacts.go_offline_if_possible()
        # The loaders that FAST_LOAD chooses bypass the page cache.
        uses_page_cache = settings and not settings.fast_load
        if child := ReadAhead.start(artifacts.locations_on_disk if uses_page_cache else []):
            read_ahead.callback(child.stop)
        # Before the import of vLLM, since this sets the directory of compiled code.
        compile_cache = (
            set_up_compile_cache(settings.base_path)
            if settings and settings.compile_cache
            else None
        )
        plan = plan_startup(bootstrap)
        location = VolumeLocation.from_settings(plan.settings)
        if location.id:
            log.info("this worker is on the network volume %s", location)
        needs = [artifact for engine in plan.engines for artifact in artifacts_in_arguments(engine)]
        context = replace(plan.context, artifact_locations=artifacts.locate_and_log(needs))
        open_read_ahead = read_ahead.pop_all()
    return replace(plan, context=context, compile_cache=compile_cache, read_ahead=open_read_ahead)


def plan_startup(bootstrap: BootstrapSettings, machine: "Machine | None" = None) -> StartupPlan:  # noqa: PLR0915 - one sequence of steps
    """Import vLLM, create its arguments for a machine (by default this one) and check all settings.

    Raises:
        SettingsError: One or more settings are wrong; the error lists all mistakes.
        StartFailed: vLLM can't be imported in this environment.
        MachineUnfit: vLLM can't run on this machine.
    """
    raw, mistakes = bootstrap.raw_settings, list[Mistake]()
    with log_phase("import"), pause_and_freeze_gc():
        options = _import_vllm_options(bootstrap, machine, mistakes)
    with log_phase("settings"):
        from worker.engine.options.automatic import DEFAULT_GPU_SHARES, divide_gpu_memory  # noqa: PLC0415 - imports vLLM
        from worker.engine.start.tables import find_option_mistakes  # noqa: PLC0415 - imports vLLM

        shares, options_by_prefix = DEFAULT_GPU_SHARES, {"": raw.main_options}
        if "MODEL" in raw.embedder_options:
            with collect_mistakes(mistakes):
                shares = divide_gpu_memory(
                    raw.main_options | raw.extra_options, raw.embedder_options
                )
            # The embedder's model may also be able to generate, but must embed here. Embedders are
            # small, so one GPU is enough.
            options_by_prefix[EMBEDDER_PREFIX] = {
                "RUNNER": "pooling",
                "TENSOR_PARALLEL_SIZE": "1",
                **raw.embedder_options,
            }
        engines: list[EngineArguments] = []
        for prefix, texts in options_by_prefix.items():
            # Names that are both options of vLLM and settings of the worker are left to the worker.
            values = {name: text for name, text in texts.items() if name not in WORKER_SETTINGS}
            extra_args = () if prefix else raw.extra_args
            arguments, wrong = options.parse_engine_settings(
                values, prefix, shares[prefix], extra_args
            )
            wrong += find_option_mistakes(arguments, options.machine)
            mistakes += [replace(mistake, name=prefix + mistake.name) for mistake in wrong]
            if not wrong:
                engines.append(arguments)
        names = _collect_setting_names(bootstrap, options, engines)
        extra_names = {name for engine in engines for name in engine.extra_option_names}
        unknown, problems = names.find_unknown_and_ineffective(
            {*raw.spellings.values(), *extra_names}, raw.files
        )
    mistakes = [*bootstrap.mistakes, *map(raw.restore_spelling, mistakes + unknown)]
    wrong_names = {mistake.name for mistake in mistakes}
    warnings = [warning for name, warning in problems if name not in wrong_names]
    warnings += _misleading_value_warnings(raw, extra_names)
    if mistakes or bootstrap.settings is None:
        raise SettingsError(mistakes, warnings)
    main, *embedders = (replace(engine, spellings=raw.spellings) for engine in engines)
    main = replace(main, defaults=(*bootstrap.defaults, *main.defaults))
    return StartupPlan(
        settings=bootstrap.settings,
        engines=(main, *embedders),
        context=StartupContext(options.machine, fast_load=bootstrap.settings.fast_load),
        option_names=options.names,
        accepted_settings=tuple(
            sorted(raw.spellings[name] for name in raw.values.keys() & names.all_names)
        ),
        warnings=tuple(warnings),
    )


def _import_vllm_options(
    bootstrap: BootstrapSettings, machine: "Machine | None", mistakes: list[Mistake]
) -> "Options":
    """Import vLLM and return its options; append mistakes in environment variables that it reads.

    Raises:
        SettingsError: vLLM can't be imported because of a variable; lists all mistakes so far.
        StartFailed: vLLM can't be imported for another reason, or can't run on this machine.
    """
    values = bootstrap.raw_settings.values
    # The imports take seconds and read the environment, which is complete only now.
    try:
        from worker.engine import variables  # noqa: PLC0415 - imports vLLM

        mistakes += variables.find_variable_mistakes(values)
        from worker.engine.options import Options  # noqa: PLC0415 - imports vLLM

        return Options(machine)
    except ValueError as error:
        # Before version 0.31, vLLM's import fails at the first wrong variable.
        mistakes = mistakes or [
            Mistake(name, redact_by_setting_name(name, value), f"vLLM can't read it: {error}")
            for name, value in values.items()
            if name.startswith("VLLM_") and repr(value) in str(error)
        ]
        if not mistakes:
            raise StartFailed(f"vLLM can't be imported: {error}") from error
        raise SettingsError([*bootstrap.mistakes, *mistakes]) from None


def _collect_setting_names(
    bootstrap: BootstrapSettings, options: "Options", engines: Sequence[EngineArguments]
) -> SettingNames:
    """Return the names of all settings, with the reasons why some have no effect."""
    ineffective = options.ineffective_option_reasons(engines)
    # Files are for the worker only, so FOREIGN_OPTIONS in them can't be another program's.
    foreign = FOREIGN_OPTIONS & bootstrap.raw_settings.files.keys()
    ineffective |= dict.fromkeys(foreign, "vLLM's server has no socket of its own in a worker")
    # After a mistake, the worker's settings have defaults in place of wrong values.
    if bootstrap.settings and not bootstrap.mistakes:
        ineffective |= bootstrap.settings.ineffective_setting_reasons()
    return SettingNames(WORKER_SETTINGS, options.names, ineffective, options.variables)


def _misleading_value_warnings(raw: RawSettings, extra_names: Collection[str]) -> Iterator[str]:
    """Yield warnings about values that don't have the effect that they seem to have."""
    for name in sorted(raw.values.keys() & WORKER_SETTINGS):
        value = raw.values[name]
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            yield f"{raw.spellings[name]} is in quotes, which are part of the value"
    if "DISABLE_LOG_STATS" in extra_names:
        flag = "--disable-log-stats"
        yield f"{flag} in {EXTRA_ARGS} has no effect: set DISABLE_LOG_STATS"


def check_base_path(raw: RawSettings) -> Iterator[Mistake]:
    """Yield a mistake if BASE_PATH is unreadable: downloads would go to a disk that a pod loses."""
    path = raw.values.get("BASE_PATH")
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
    yield raw.restore_spelling(Mistake("BASE_PATH", path, advice))
