"""Where settings come from, and which wins: a config file, a baked model, the environment."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import yaml

from worker.errors import Mistake, SettingsError, collected
from worker.settings.names import ALIASES, EMBEDDER, OPPOSITES, SPECULATIVE, plain
from worker.settings.values import hidden, masked, opposite, same, says, scalar, shown, text

# Written when a model is put into the image.
BAKED = Path("/local_model_args.json")
CONFIG_FILE = "VLLM_CONFIG_FILE"
DEFAULT_CONFIG_FILE = Path("/vllm_config.yaml")
EXTRA_ARGS = "VLLM_EXTRA_ARGS"
EXTRA_EXAMPLE = "'--max-model-len 4096 --enable-lora'"


@dataclass(frozen=True)
class Given:
    """What is set: texts by the settings' names, each as the strongest source has it.

    ``written`` is how the operator spelt a name, ``files`` the file that a value stands in, for
    those that are not in the environment; ``extra`` the words of VLLM_EXTRA_ARGS. ``mistakes`` are
    files that can't be read, and spellings of one setting that differ.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    written: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    mistakes: tuple[Mistake, ...] = ()

    def options(self, prefix: str = "") -> dict[str, str]:
        """Select what may be options of vLLM's, by the options' own names.

        Args:
            prefix: of the names to look at, which the selected ones are without.
        """
        bare = {
            name.removeprefix(prefix): value
            for name, value in self.values.items()
            if name.startswith(prefix)
        }
        # The worker's setting, for each engine.
        if says(self.values.get("DISABLE_LOG_REQUESTS"), False):
            bare["ENABLE_LOG_REQUESTS"] = "1"
        return {ALIASES.get(name, name): value for name, value in bare.items()}

    def told(self, mistake: Mistake) -> Mistake:
        """Say a mistake in the operator's spelling, and where it stands."""
        name = plain(mistake.name)
        spelt = self.written.get(name, name)
        place = f"(in {self.files[name]}) " if name in self.files else ""
        told = replace(mistake, name=spelt, advice=f"{place}{mistake.advice}")
        if "SPECULATIVE_" in spelt and spelt != name:
            # Made of several variables, none of which can hold what the whole does.
            return replace(told, value=self.values[name], example=None)
        return told


def gathered(environ: Mapping[str, str], baked: Path = BAKED) -> Given:
    """Gather what is set: a baked model over the config file, the environment over both.

    Blank values count as unset.

    Args:
        environ: the variables that are set.
        baked: the file that describes a model in the image.
    """
    mistakes: list[Mistake] = []
    values: dict[str, str] = {}
    written: dict[str, str] = {}
    files: dict[str, Path] = {}
    extra: tuple[str, ...] = ()
    with collected(mistakes):
        extra = _words(environ.get(EXTRA_ARGS, ""))
    for source, variables in _sources(environ, extra, baked, mistakes):
        for name, (spelt, value) in _plainly(variables, mistakes).items():
            values[name], written[name] = value, spelt
            files.pop(name, None)
            if source:
                files[name] = source
    for prefix in ("", EMBEDDER):
        with collected(mistakes):
            _join_speculative(prefix, values, written)
    return Given(values, written, files, extra, tuple(mistakes))


def _sources(
    environ: Mapping[str, str], extra: Sequence[str], baked: Path, mistakes: list[Mistake]
) -> Iterator[tuple[Path | None, Mapping[str, str]]]:
    chosen = environ.get(CONFIG_FILE, "").strip()
    config = Path(chosen) if chosen else DEFAULT_CONFIG_FILE
    for name, file, wanted in ((CONFIG_FILE, config, bool(chosen)), ("", baked, False)):
        if wanted or file.is_file():
            with collected(mistakes):
                values: Mapping[str, str] = _read(name or str(file), file)
                yield file, _of_model(environ, extra, values) if file == baked else values
    yield None, environ


def _of_model(
    environ: Mapping[str, str], extra: Sequence[str], values: Mapping[str, str]
) -> Mapping[str, str]:
    """Select what counts of an image's settings: they belong to the model in it, and no other."""
    asked = [
        options_of(extra).get("MODEL", ""),
        *(environ.get(name, "").strip() for name in ("MODEL_NAME", "MODEL")),
    ]
    # The extra arguments win, and what is blank elsewhere is blank here.
    named = next((each for each in asked if each not in {"", "None"}), None)
    if named is None or values.get("MODEL_NAME", named) == named:
        return values
    # Whoever asks in the extra arguments still needs a name in the settings.
    return {"MODEL_NAME": values["MODEL_NAME"]}


def options_of(words: Sequence[str]) -> dict[str, str]:
    """Read the options among the words of a command line, by the names that settings have.

    What follows an option is taken for its value: whether it has one, only vLLM's parser knows.
    """
    options: dict[str, str] = {}
    for word, after in pairwise((*words, "")):
        if word.startswith("-"):
            name, equals, value = word.partition("=")
            # A part of a value that is JSON: --speculative-config.model.
            whole = name.strip("-").partition(".")[0]
            options[whole.replace("-", "_").upper()] = value if equals else after
    return options


def _read(name: str, file: Path) -> dict[str, str]:
    """Read settings from a file in YAML, of which JSON is a part; keys are spelt in any way."""
    example = "it holds lines such as max-model-len: 4096"
    try:
        held = yaml.safe_load(file.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        advice = f"can't be read: {_reason(error)}; {example}"
        raise SettingsError([Mistake(name, str(file), advice)]) from None
    if held is None:
        return {}
    if not isinstance(held, dict):
        raise SettingsError([Mistake(name, str(file), f"holds no settings; {example}")])
    # Beside them, an image says where its models lie.
    held = held["settings"] if isinstance(held.get("settings"), dict) else held
    values: dict[str, str] = {}
    for key, value in held.items():
        setting = str(key).upper().replace("-", "_")
        if setting in (CONFIG_FILE, EXTRA_ARGS):
            advice = f"stands in {file}, but only the environment can set it"
            raise SettingsError([Mistake(setting, hidden(text(value)), advice)])
        if values.setdefault(setting, text(value)) != text(value):
            advice = f"stands in {file} twice, with two values"
            raise SettingsError([Mistake(setting, shown(masked(setting, text(value))), advice)])
    return values


def _reason(error: Exception) -> str:
    """Say why a file can't be read, without the line that is wrong, which may hold a secret."""
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark):
        return f"{error.problem}, in line {mark.line + 1}, column {mark.column + 1}"
    return str(error)


def _plainly(variables: Mapping[str, str], mistakes: list[Mistake]) -> dict[str, tuple[str, str]]:
    """Give what one source sets the settings' own names, beside how they were spelt there."""
    told: dict[str, tuple[str, str]] = {}
    for spelt in sorted(variables):
        # The word for nothing in many a table of settings.
        if (value := variables[spelt].strip()) and value != "None":
            name = plain(spelt)
            if spelt in OPPOSITES:
                name, value = OPPOSITES[spelt], opposite(value)
            other, before = told.get(name, (spelt, value))
            if not same(before, value):
                told_before = masked(other, variables[other].strip())
                advice = f"{other}={told_before} is the same setting: set one of them"
                mistakes.append(Mistake(spelt, masked(spelt, variables[spelt].strip()), advice))
            told[name] = (spelt, value)
    return told


def _words(line: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(line))
    except ValueError as error:
        mistake = Mistake(EXTRA_ARGS, hidden(line), str(error), EXTRA_EXAMPLE)
        raise SettingsError([mistake]) from None


def _join_speculative(prefix: str, values: dict[str, str], written: dict[str, str]) -> None:
    """Make SPECULATIVE_CONFIG of the variables that it once was.

    Raises:
        SettingsError: it is given, too.
    """
    whole = f"{prefix}SPECULATIVE_CONFIG"
    parts = {f"{prefix}{name}": key for name, key in SPECULATIVE.items()}
    given = {name: values.pop(name) for name in parts if name in values}
    if not given:
        return
    if whole in values:
        raise SettingsError(
            [
                Mistake(name, value, f"{whole} is given, too: set it in there")
                for name, value in given.items()
            ]
        )
    written[whole] = ", ".join(given)
    values[whole] = json.dumps({parts[name]: scalar(value) for name, value in given.items()})
