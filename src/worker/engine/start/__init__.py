"""The start of the worker: a ``Start`` goes through all phases, from the settings to the engines.

=============  =====================================  =============================================
phase          function                               result
=============  =====================================  =============================================
sources        ``settings.sources.gather_settings``   the settings as strings, ``Start.raw``
settings       ``Start.read``                         the worker's own, ``Start.settings``
options        ``Start.read_options``                 vLLM's arguments, ``Start.engines``
directories    ``Start.prepare``                      where the models are, ``Start.locations``
configuration  ``configuring.configure_engine``       vLLM's configuration of each engine
core           ``launch.launch_engines``              a process that has loaded the weights
warm-up        ``launch.warm_up``                     engines that have answered a request
=============  =====================================  =============================================

The doctor runs the same phases until weights are needed, and ``rehearsal`` in place of a core.

``artifacts`` finds or downloads the models, and ``ahead`` reads their weights into the page cache
while vLLM is imported. ``tables`` lists the functions of ``steps`` and ``parsers``, which change
arguments, those of ``checks``, and the fallbacks. ``cores`` forks and spawns cores. ``refusals``
explains why a phase failed.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from worker import masking
from worker.compile_cache import CompileCache, set_up_compile_cache
from worker.engine.arguments import EngineArguments
from worker.engine.machine import Gpu, Machine
from worker.engine.seam.imports import cache_import_structure
from worker.engine.start.ahead import ReadAhead
from worker.engine.start.artifacts import EngineArtifacts, artifacts_in_arguments
from worker.errors import StartFailed
from worker.process.lifetime import log_phase, pause_and_freeze_gc
from worker.settings import Settings
from worker.settings.environment import ChosenDefault
from worker.settings.mistakes import Mistake, SettingsError, collect_mistakes
from worker.settings.names import EMBEDDER_PREFIX, FOREIGN_OPTIONS, SettingNames
from worker.settings.sources import EXTRA_ARGS, RawSettings
from worker.settings.values import redact_by_setting_name
from worker.store import Artifact, ArtifactLocation
from worker.volume.ids import VolumeLocation

if TYPE_CHECKING:
    # This module imports vLLM, which reads environment variables that the start sets first.
    from worker.engine.options import Options

log = logging.getLogger("worker")

WORKER_SETTINGS = frozenset(name.upper() for name in Settings.model_fields)
# Stands for a MODEL_NAME that is missing or wrong, so that the other settings can be checked.
_NO_MODEL = "unset"
_CPU = Machine(cpu=True)


@dataclass
class Start:
    """A start of the worker, of which each phase fills in a part."""

    settings: Settings  # with defaults in place of wrong values
    raw: RawSettings = field(default_factory=RawSettings)  # all settings that are set, as strings
    # Mistakes found so far, with the operator's spelling of the names.
    mistakes: list[Mistake] = field(default_factory=list)
    warnings: tuple[str, ...] = ()  # about settings that have no effect or are misleading
    # Chosen by the worker for libraries' variables, if worth logging.
    defaults: tuple[ChosenDefault, ...] = ()
    # Known settings that are set, in the operator's spelling.
    accepted_settings: tuple[str, ...] = ()
    option_names: frozenset[str] = frozenset()  # all of vLLM's options that can be settings
    # The main model's engine, then an optional embedder's.
    engines: list[EngineArguments] = field(default_factory=list)
    machine: Machine = _CPU  # that the engines run on; until the options are read, any CPU
    locations: Mapping[Artifact, ArtifactLocation] = field(default_factory=dict)
    compile_cache: CompileCache | None = None  # None if it is disabled
    # Closing this stops the child process that reads the weights into the page cache, if any. It
    # must be closed when the engines have loaded the weights or won't load them.
    read_ahead: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    only_trains: bool = False  # the worker trains adapters and starts no engine

    @classmethod
    def read(cls, raw: RawSettings) -> Self:
        """Validate the worker's settings, set libraries' variables, and mask secrets in output.

        A wrong setting does not raise an error, so that the model's download can begin and vLLM can
        report further mistakes.
        """
        mistakes: list[Mistake] = []
        with collect_mistakes(mistakes):
            settings = Settings.from_env(raw.values)
        if mistakes:
            wrong = {mistake.name for mistake in mistakes}
            valid = {name: value for name, value in raw.values.items() if name not in wrong}
            settings = Settings.from_env({"MODEL_NAME": _NO_MODEL, **valid})
        defaults, secrets = settings.export_library_variables(), settings.secret_values()
        # Secrets from files are not masked yet because they were not in the environment.
        masking.add_secrets(secrets)
        masking.add_url_credentials(raw.values.values())
        start = cls(settings, raw, defaults=tuple(defaults))
        start.mistakes = [*raw.mistakes, *map(raw.restore_spelling, mistakes)]
        return start

    @property
    def has_model(self) -> bool:
        return self.settings.model_name != _NO_MODEL

    @property
    def simulated_gpu(self) -> Gpu | None:
        """One of the GPUs, if the engines are to run on another machine; None for this machine."""
        return self.machine.gpus[0] if self.machine.gpu_choice else None

    @property
    def main_arguments(self) -> EngineArguments:
        return self.engines[0]

    def prepare(self, *, offline: bool = False) -> None:
        """Check all settings while the models and other artifacts are found or downloaded.

        With ``offline``, libraries make no requests to the hub if the store looks for all
        artifacts. The store itself may still download them.
        """
        settings = self.settings
        with (
            # Without a model, search for nothing: ``read_options`` reports the mistake.
            contextlib.closing(
                EngineArtifacts(self.raw if self.has_model else RawSettings())
            ) as artifacts,
            contextlib.ExitStack() as read_ahead,
        ):
            if offline:
                artifacts.go_offline_if_possible()
            # The loaders that FAST_LOAD chooses bypass the page cache.
            on_disk = [] if settings.fast_load else artifacts.locations_on_disk
            if child := ReadAhead.start(on_disk):
                read_ahead.callback(child.stop)
            # Before the import of vLLM, since this sets the directory of compiled code.
            if settings.compile_cache and self.has_model:
                self.compile_cache = set_up_compile_cache(settings.base_path)
            self.read_options()
            location = VolumeLocation.from_settings(settings)
            if location.id:
                log.info("this worker is on the network volume %s", location)
            needs = [artifact for one in self.engines for artifact in artifacts_in_arguments(one)]
            self.locations = artifacts.locate_and_log(needs)
            self.read_ahead = read_ahead.pop_all()

    def read_options(self, machine: Machine | None = None) -> None:
        """Import vLLM, create its arguments for a machine, by default this one; check all settings.

        Raises:
            SettingsError: One or more settings are wrong; the error lists all mistakes.
            StartFailed: vLLM can't be imported, or (MachineUnfit) can't run on this machine.
        """
        raw, mistakes = self.raw, list[Mistake]()
        with log_phase("import"), pause_and_freeze_gc(), cache_import_structure():
            options = self._import_vllm_options(machine, mistakes)
        with log_phase("settings"):
            engines = self._parse_engine_settings(options, mistakes)
            ineffective = options.ineffective_option_reasons(engines)
            # Files are for the worker only, so FOREIGN_OPTIONS in them can't be another program's.
            foreign = FOREIGN_OPTIONS & raw.files.keys()
            reason = "vLLM's server has no socket of its own in a worker"
            ineffective |= dict.fromkeys(foreign, reason)
            # After a mistake, the worker's settings have defaults in place of wrong values.
            if not self.mistakes:
                ineffective |= self.settings.ineffective_setting_reasons()
            names = SettingNames(WORKER_SETTINGS, options.names, ineffective, options.variables)
            extra_names = {name for engine in engines for name in engine.extra_option_names}
            mistakes += names.find_unknown_in_files(raw.files)
            without_effect = names.find_without_effect({*raw.spellings.values(), *extra_names})
        self.mistakes += map(raw.restore_spelling, mistakes)
        wrong_names = {mistake.name for mistake in self.mistakes}
        warnings = [warning for name, warning in without_effect if name not in wrong_names]
        for name in sorted(raw.values.keys() & WORKER_SETTINGS):
            value = raw.values[name]
            if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
                warnings.append(f"{raw.spellings[name]} is in quotes, which are part of the value")
        if "DISABLE_LOG_STATS" in extra_names:
            flag = "--disable-log-stats"
            warnings.append(f"{flag} in {EXTRA_ARGS} has no effect: set DISABLE_LOG_STATS")
        self.warnings = tuple(warnings)
        if self.mistakes:
            raise SettingsError(self.mistakes, self.warnings)
        main, *embedders = engines
        self.engines = [replace(main, defaults=(*self.defaults, *main.defaults)), *embedders]
        self.machine, self.option_names = options.machine, options.names
        self.accepted_settings = tuple(
            sorted(raw.spellings[name] for name in raw.values.keys() & names.all_names)
        )

    def _import_vllm_options(self, machine: Machine | None, mistakes: list[Mistake]) -> "Options":
        """Import vLLM and return its options; append mistakes in environment variables it reads."""
        values = self.raw.values
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
            raise SettingsError([*self.mistakes, *mistakes]) from None

    def _parse_engine_settings(
        self, options: "Options", mistakes: list[Mistake]
    ) -> list[EngineArguments]:
        """Return the arguments of the engines, without those for whose options it adds mistakes."""
        from worker.engine.options.automatic import DEFAULT_GPU_SHARES, divide_gpu_memory  # noqa: PLC0415 - imports vLLM
        from worker.engine.start.tables import find_option_mistakes  # noqa: PLC0415 - imports vLLM

        raw = self.raw
        shares, options_by_prefix = DEFAULT_GPU_SHARES, {"": raw.main_options}
        if "MODEL" in raw.embedder_options:
            with collect_mistakes(mistakes):
                shares = divide_gpu_memory(
                    raw.main_options | raw.extra_options, raw.embedder_options
                )
            # The embedder's model may also be able to generate, but must embed here. Embedders
            # are small, so one GPU is enough.
            options_by_prefix[EMBEDDER_PREFIX] = {
                "RUNNER": "pooling",
                "TENSOR_PARALLEL_SIZE": "1",
                **raw.embedder_options,
            }
        engines = []
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
                engines.append(replace(arguments, spellings=raw.spellings))
        return engines


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
