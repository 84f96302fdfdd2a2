"""Merges settings, in order of precedence: environment, the baked model's file, config file."""

import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import yaml

from worker.settings.mistakes import Mistake, SettingsError, collect_mistakes
from worker.settings.names import (
    EMBEDDER_PREFIX,
    NEGATED_NAMES,
    OPTION_BY_SETTING,
    SPECULATIVE_KEYS,
    canonical_name,
)
from worker.settings.values import (
    equals_boolean,
    format_value,
    is_same_value,
    negate_boolean,
    parse_scalar,
    redact_by_setting_name,
    redact_command_line,
    redact_json_and_urls,
)

# The file that the image build writes to describe the model in the image.
BAKED_MODEL_FILE = Path("/local_model_args.json")
CONFIG_FILE = "VLLM_CONFIG_FILE"
DEFAULT_CONFIG_FILE = Path("/vllm_config.yaml")
EXTRA_ARGS = "VLLM_EXTRA_ARGS"
# Settings that files can't contain, since they are needed before or while files are read.
ENVIRONMENT_ONLY = (CONFIG_FILE, EXTRA_ARGS, "LOG_FORMAT")
EXTRA_ARGS_EXAMPLE = "'--max-model-len 4096 --enable-lora'"


@dataclass(frozen=True)
class RawSettings:
    """All settings that are set, as strings; all mappings are by canonical name."""

    # From the source with the highest precedence.
    values: Mapping[str, str] = field(default_factory=dict)
    spellings: Mapping[str, str] = field(default_factory=dict)  # the operator's names
    # Of the values that are not from the environment.
    files: Mapping[str, Path] = field(default_factory=dict)
    extra_args: tuple[str, ...] = ()  # the words of VLLM_EXTRA_ARGS
    # Unreadable files, malformed VLLM_EXTRA_ARGS, settings with two values.
    mistakes: tuple[Mistake, ...] = ()

    @cached_property
    def main_options(self) -> dict[str, str]:
        """Settings that may be options of the main model's engine, by vLLM's names."""
        return self._engine_options("")

    @cached_property
    def embedder_options(self) -> dict[str, str]:
        """Settings that may be options of the embedder's engine, by vLLM's names."""
        return self._engine_options(EMBEDDER_PREFIX)

    @cached_property
    def extra_options(self) -> dict[str, str]:
        """The options in VLLM_EXTRA_ARGS for the main model's engine, read by ``guess_options``."""
        return guess_options(self.extra_args)

    def _engine_options(self, prefix: str) -> dict[str, str]:
        options = {
            name.removeprefix(prefix): value
            for name, value in self.values.items()
            if name.startswith(prefix)
        }
        # DISABLE_LOG_REQUESTS is a setting of the worker and applies to both engines.
        if equals_boolean(self.values.get("DISABLE_LOG_REQUESTS"), False):
            options["ENABLE_LOG_REQUESTS"] = "1"
        return {OPTION_BY_SETTING.get(name, name): value for name, value in options.items()}

    def without_settings(self, names: Collection[str]) -> "RawSettings":
        """Return a copy without the settings spelled like this, and with no list of mistakes."""
        remaining = {name for name, spelling in self.spellings.items() if spelling not in names}
        values = {name: value for name, value in self.values.items() if name in remaining}
        extra_args = () if EXTRA_ARGS in names else self.extra_args
        return replace(self, values=values, extra_args=extra_args, mistakes=())

    def restore_spelling(self, mistake: Mistake) -> Mistake:
        """Return a mistake with the operator's spelling of the name, and with its file."""
        name = canonical_name(mistake.name)
        spelling = self.spellings.get(name, name)
        location = f"(in {self.files[name]}) " if name in self.files else ""
        restored = replace(mistake, name=spelling, advice=f"{location}{mistake.advice}")
        if "SPECULATIVE_" in spelling and spelling != name:
            # Several variables are merged, and an example of the merged value fits none of them.
            return replace(restored, value=self.values[name], example=None)
        return restored


def gather_settings(environ: Mapping[str, str], baked_file: Path = BAKED_MODEL_FILE) -> RawSettings:
    """Merge the settings of all sources and collect mistakes; blank values count as unset."""
    mistakes: list[Mistake] = []
    values: dict[str, str] = {}
    spellings: dict[str, str] = {}
    files: dict[str, Path] = {}
    extra_args: tuple[str, ...] = ()
    line = environ.get(EXTRA_ARGS, "")
    try:
        extra_args = tuple(shlex.split(line))
    except ValueError as error:
        mistakes.append(
            Mistake(EXTRA_ARGS, redact_command_line(line), str(error), EXTRA_ARGS_EXAMPLE)
        )
    # Each source's file and variables, least precedence first; None is for the environment.
    sources: list[tuple[Path | None, Mapping[str, str]]] = []
    config_name = environ.get(CONFIG_FILE, "").strip()
    config_file = Path(config_name) if config_name else DEFAULT_CONFIG_FILE
    if config_name or config_file.is_file():
        with collect_mistakes(mistakes):
            sources.append((config_file, _parse_settings_file(CONFIG_FILE, config_file)))
    if baked_file.is_file():
        with collect_mistakes(mistakes):
            baked = _parse_settings_file(str(baked_file), baked_file)
            sources.append((baked_file, _drop_other_model_settings(environ, extra_args, baked)))
    sources.append((None, environ))
    for source, variables in sources:
        for name, (spelling, value) in _index_by_canonical_name(variables, mistakes).items():
            values[name], spellings[name] = value, spelling
            files.pop(name, None)
            if source:
                files[name] = source
    for prefix in ("", EMBEDDER_PREFIX):
        mistakes += _merge_speculative_variables(prefix, values, spellings)
    return RawSettings(values, spellings, files, extra_args, tuple(mistakes))


def _drop_other_model_settings(
    environ: Mapping[str, str], extra_args: Sequence[str], values: Mapping[str, str]
) -> Mapping[str, str]:
    """Drop the image's settings except MODEL_NAME if the operator selects another model."""
    models = [
        guess_options(extra_args).get("MODEL", ""),
        *(environ.get(name, "").strip() for name in ("MODEL_NAME", "MODEL")),
    ]
    # The extra arguments take precedence. Blank names are skipped.
    named_model = next((model for model in models if model not in {"", "None"}), None)
    if named_model is None or values.get("MODEL_NAME", named_model) == named_model:
        return values
    # The worker requires MODEL_NAME even if the extra arguments name the model.
    return {"MODEL_NAME": values["MODEL_NAME"]}


def guess_options(words: Sequence[str]) -> dict[str, str]:
    """Read options from command line words without vLLM's parser; return values by setting name.

    The word after an option counts as its value: only the parser knows which options take one.
    """
    options: dict[str, str] = {}
    for word, following in pairwise((*words, "")):
        if word.startswith("-"):
            name, equals, value = word.partition("=")
            # --speculative-config.model sets a key of a JSON object.
            option = name.strip("-").partition(".")[0]
            options[option.replace("-", "_").upper()] = value if equals else following
    return options


def _parse_settings_file(name: str, file: Path) -> dict[str, str]:
    """Read a YAML or JSON file, whose keys may be in any case, with hyphens or underscores."""
    example = "it has lines such as max-model-len: 4096"
    try:
        content = yaml.safe_load(file.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = str(error)
        # Without the invalid line, which may contain a secret.
        if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark):
            reason = f"{error.problem}, in line {mark.line + 1}, column {mark.column + 1}"
        advice = f"can't be read: {reason}; {example}"
        raise SettingsError([Mistake(name, str(file), advice)]) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError([Mistake(name, str(file), f"contains no settings; {example}")])
    # The file in an image also lists the directories of its models.
    settings = content["settings"] if isinstance(content.get("settings"), dict) else content
    values: dict[str, str] = {}
    for key, value in settings.items():
        setting = str(key).upper().replace("-", "_")
        if setting in ENVIRONMENT_ONLY:
            advice = f"is in {file}, but only the environment can set it"
            raise SettingsError(
                [Mistake(setting, redact_command_line(format_value(value)), advice)]
            )
        if values.setdefault(setting, format_value(value)) != format_value(value):
            advice = f"is in {file} twice, with different values"
            redacted = redact_json_and_urls(redact_by_setting_name(setting, format_value(value)))
            raise SettingsError([Mistake(setting, redacted, advice)])
    return values


def _index_by_canonical_name(
    variables: Mapping[str, str], mistakes: list[Mistake]
) -> dict[str, tuple[str, str]]:
    """Return the operator's spelling and the value of each setting of a source, by canonical name.

    If two names of a setting have different values, a mistake is added to ``mistakes``.
    """
    by_name: dict[str, tuple[str, str]] = {}
    for spelling in sorted(variables):
        # Some consoles write None for an unset value.
        if (value := variables[spelling].strip()) and value != "None":
            name = canonical_name(spelling)
            if spelling in NEGATED_NAMES:
                name, value = NEGATED_NAMES[spelling], negate_boolean(value)
            other, other_value = by_name.get(name, (spelling, value))
            if not is_same_value(other_value, value):
                other_text = redact_by_setting_name(other, variables[other].strip())
                advice = f"{other}={other_text} is the same setting: set one of them"
                redacted_value = redact_by_setting_name(spelling, variables[spelling].strip())
                mistakes.append(Mistake(spelling, redacted_value, advice))
            by_name[name] = (spelling, value)
    return by_name


def _merge_speculative_variables(
    prefix: str, values: dict[str, str], spellings: dict[str, str]
) -> list[Mistake]:
    """Merge variables into SPECULATIVE_CONFIG; it is a mistake if that is set, too."""
    whole = f"{prefix}SPECULATIVE_CONFIG"
    keys = {f"{prefix}{name}": key for name, key in SPECULATIVE_KEYS.items()}
    parts = {name: values.pop(name) for name in keys if name in values}
    if parts and whole in values:
        advice = f"{whole} is set, too: move this key into it"
        return [Mistake(name, value, advice) for name, value in parts.items()]
    if parts:
        spellings[whole] = ", ".join(parts)
        values[whole] = json.dumps({keys[name]: parse_scalar(text) for name, text in parts.items()})
    return []
