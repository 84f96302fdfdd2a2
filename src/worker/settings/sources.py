"""The sources of settings: the environment, then a baked model's file, then a config file."""

import json
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import yaml

from worker.settings.mistakes import Mistake, SettingsError, collected
from worker.settings.names import ALIASES, EMBEDDER, OPPOSITES, SPECULATIVE, canonical
from worker.settings.values import (
    opposite,
    redact,
    redact_line,
    redact_setting,
    same,
    says,
    scalar,
    text,
)

# The file that describes a model in the image, written when the image is built.
BAKED = Path("/local_model_args.json")
CONFIG_FILE = "VLLM_CONFIG_FILE"
DEFAULT_CONFIG_FILE = Path("/vllm_config.yaml")
EXTRA_ARGS = "VLLM_EXTRA_ARGS"
# Settings that can't be in a file: the log begins before files are read.
ENVIRONMENT_ONLY = (CONFIG_FILE, EXTRA_ARGS, "LOG_FORMAT")
EXTRA_EXAMPLE = "'--max-model-len 4096 --enable-lora'"


@dataclass(frozen=True)
class Given:
    """All settings that are set, as text.

    Attributes:
        values: by canonical name, from the source that wins.
        written: the operator's spelling of each name.
        files: the file that a value comes from, for those that are not from the environment.
        extra: the words of VLLM_EXTRA_ARGS.
        mistakes: files that can't be read, and two spellings of a setting with different values.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    written: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    mistakes: tuple[Mistake, ...] = ()

    @cached_property
    def main(self) -> dict[str, str]:
        """What may be options of the model's engine, by vLLM's own names of them."""
        return self._options("")

    @cached_property
    def embedder(self) -> dict[str, str]:
        """What may be options of an embedder's engine, likewise."""
        return self._options(EMBEDDER)

    @cached_property
    def from_extra(self) -> dict[str, str]:
        """The options in VLLM_EXTRA_ARGS, for the model's engine, as ``options_of`` reads them."""
        return options_of(self.extra)

    def _options(self, prefix: str) -> dict[str, str]:
        bare = {
            name.removeprefix(prefix): value
            for name, value in self.values.items()
            if name.startswith(prefix)
        }
        # The worker's setting holds for every engine.
        if says(self.values.get("DISABLE_LOG_REQUESTS"), False):
            bare["ENABLE_LOG_REQUESTS"] = "1"
        return {ALIASES.get(name, name): value for name, value in bare.items()}

    def without(self, names: Collection[str]) -> "Given":
        """Return the settings without some of them, in the operator's spelling of their names."""
        left = {name for name, written in self.written.items() if written not in names}
        values = {name: value for name, value in self.values.items() if name in left}
        extra = () if EXTRA_ARGS in names else self.extra
        return replace(self, values=values, extra=extra, mistakes=())

    def as_written(self, mistake: Mistake) -> Mistake:
        """Return a mistake with the operator's spelling of the name, and the file it is in."""
        name = canonical(mistake.name)
        written = self.written.get(name, name)
        place = f"(in {self.files[name]}) " if name in self.files else ""
        found = replace(mistake, name=written, advice=f"{place}{mistake.advice}")
        if "SPECULATIVE_" in written and written != name:
            # Joined from several variables: an example of the whole fits none of them.
            return replace(found, value=self.values[name], example=None)
        return found


def gather(environ: Mapping[str, str], baked: Path = BAKED) -> Given:
    """Gather the settings from all sources; blank values count as unset."""
    mistakes: list[Mistake] = []
    values: dict[str, str] = {}
    written: dict[str, str] = {}
    files: dict[str, Path] = {}
    extra: tuple[str, ...] = ()
    line = environ.get(EXTRA_ARGS, "")
    try:
        extra = tuple(shlex.split(line))
    except ValueError as error:
        mistakes.append(Mistake(EXTRA_ARGS, redact_line(line), str(error), EXTRA_EXAMPLE))
    for source, variables in _sources(environ, extra, baked, mistakes):
        for name, (spelling, value) in _by_canonical_name(variables, mistakes).items():
            values[name], written[name] = value, spelling
            files.pop(name, None)
            if source:
                files[name] = source
    for prefix in ("", EMBEDDER):
        mistakes += _join_speculative(prefix, values, written)
    return Given(values, written, files, extra, tuple(mistakes))


def _sources(
    environ: Mapping[str, str], extra: Sequence[str], baked: Path, mistakes: list[Mistake]
) -> Iterator[tuple[Path | None, Mapping[str, str]]]:
    """Yield the variables of each source with its file, weakest first; the environment has none."""
    named = environ.get(CONFIG_FILE, "").strip()
    config = Path(named) if named else DEFAULT_CONFIG_FILE
    if named or config.is_file():
        with collected(mistakes):
            yield config, _read(CONFIG_FILE, config)
    if baked.is_file():
        with collected(mistakes):
            yield baked, _for_baked_model(environ, extra, _read(str(baked), baked))
    yield None, environ


def _for_baked_model(
    environ: Mapping[str, str], extra: Sequence[str], values: Mapping[str, str]
) -> Mapping[str, str]:
    """Drop the settings of the image if another model than the one in it is named."""
    models = [
        options_of(extra).get("MODEL", ""),
        *(environ.get(name, "").strip() for name in ("MODEL_NAME", "MODEL")),
    ]
    # The extra arguments win; blank names are skipped.
    named = next((model for model in models if model not in {"", "None"}), None)
    if named is None or values.get("MODEL_NAME", named) == named:
        return values
    # The worker requires a MODEL_NAME, also where the extra arguments name the model.
    return {"MODEL_NAME": values["MODEL_NAME"]}


def options_of(words: Sequence[str]) -> dict[str, str]:
    """Read options from command line words, without vLLM's parser, by their names as settings.

    The word after an option is taken for its value: whether the option has one, only the parser
    knows.
    """
    options: dict[str, str] = {}
    for word, following in pairwise((*words, "")):
        if word.startswith("-"):
            name, equals, value = word.partition("=")
            # --speculative-config.model sets a key of a JSON object.
            option = name.strip("-").partition(".")[0]
            options[option.replace("-", "_").upper()] = value if equals else following
    return options


def _read(name: str, file: Path) -> dict[str, str]:
    """Read settings from a YAML or JSON file; keys may be in any case, with hyphens or underscores.

    Raises:
        SettingsError: the file can't be read, or holds something else.
    """
    example = "it holds lines such as max-model-len: 4096"
    try:
        content = yaml.safe_load(file.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        advice = f"can't be read: {_reason(error)}; {example}"
        raise SettingsError([Mistake(name, str(file), advice)]) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError([Mistake(name, str(file), f"holds no settings; {example}")])
    # The file in an image also lists the places of its models.
    settings = content["settings"] if isinstance(content.get("settings"), dict) else content
    values: dict[str, str] = {}
    for key, value in settings.items():
        setting = str(key).upper().replace("-", "_")
        if setting in ENVIRONMENT_ONLY:
            advice = f"stands in {file}, but only the environment can set it"
            raise SettingsError([Mistake(setting, redact_line(text(value)), advice)])
        if values.setdefault(setting, text(value)) != text(value):
            advice = f"stands in {file} twice, with two values"
            shown = redact(redact_setting(setting, text(value)))
            raise SettingsError([Mistake(setting, shown, advice)])
    return values


def _reason(error: Exception) -> str:
    """Return why a file can't be read, without the wrong line, which may hold a secret."""
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark):
        return f"{error.problem}, in line {mark.line + 1}, column {mark.column + 1}"
    return str(error)


def _by_canonical_name(
    variables: Mapping[str, str], mistakes: list[Mistake]
) -> dict[str, tuple[str, str]]:
    """Return the operator's spellings and the values of one source, by canonical name.

    Different values of one setting are added to the mistakes.
    """
    renamed: dict[str, tuple[str, str]] = {}
    for spelling in sorted(variables):
        # Some consoles write None for an unset value.
        if (value := variables[spelling].strip()) and value != "None":
            name = canonical(spelling)
            if spelling in OPPOSITES:
                name, value = OPPOSITES[spelling], opposite(value)
            other, before = renamed.get(name, (spelling, value))
            if not same(before, value):
                shown_before = redact_setting(other, variables[other].strip())
                advice = f"{other}={shown_before} is the same setting: set one of them"
                shown_value = redact_setting(spelling, variables[spelling].strip())
                mistakes.append(Mistake(spelling, shown_value, advice))
            renamed[name] = (spelling, value)
    return renamed


def _join_speculative(
    prefix: str, values: dict[str, str], written: dict[str, str]
) -> list[Mistake]:
    """Replace the variables of speculative decoding by one SPECULATIVE_CONFIG.

    It is a mistake if that is set, too.
    """
    whole = f"{prefix}SPECULATIVE_CONFIG"
    parts = {f"{prefix}{name}": key for name, key in SPECULATIVE.items()}
    given = {name: values.pop(name) for name in parts if name in values}
    if given and whole in values:
        advice = f"{whole} is given, too: set it in there"
        return [Mistake(name, value, advice) for name, value in given.items()]
    if given:
        written[whole] = ", ".join(given)
        values[whole] = json.dumps({parts[name]: scalar(value) for name, value in given.items()})
    return []
