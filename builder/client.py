"""The listing of settings for the client, which has neither the worker nor vLLM."""

from typing import Any, get_args

from catalogue import Catalogue, list_own_setting, without_none
from forms import CUDA
from table import Row

from worker.engine.options import UNSET_VALUES
from worker.engine.options.option import describe_value_kind, read_bounds
from worker.settings import Concurrency, Settings, history
from worker.settings.environment import SECRET_VARIABLES
from worker.settings.examples import example_value
from worker.settings.names import (
    CANONICAL_NAMES,
    CORRECTIONS,
    EMBEDDER_PREFIX,
    FOREIGN_OPTIONS,
    LIBRARY_VARIABLES,
    NEGATED_NAMES,
    OPTION_BY_SETTING,
    REMOVED_SETTINGS,
    SPECULATIVE_KEYS,
    explain_removal,
)
from worker.settings.values import OBJECT_STORAGE_PATTERN, REPOSITORY_ADVICE, REPOSITORY_PATTERN

# Kinds that can be checked from the text of a value alone.
_CHECKABLE_KINDS = frozenset({"boolean", "integer", "json", "list", "number", "size"})
# Checks of a model's name; only the worker can check whether a directory exists.
_MODEL_NAME_CHECKS = {
    "pattern": rf"{REPOSITORY_PATTERN}|{OBJECT_STORAGE_PATTERN}|[/.~].*",
    "accepted": REPOSITORY_ADVICE,
}


def settings(catalogue: Catalogue, release: str) -> dict[str, Any]:
    """List the settings and their accepted values, to check the settings of an endpoint.

    Args:
        catalogue: All settings.
        release: The release of vLLM that the listing is for.
    """
    fields = {name.upper() for name in Settings.model_fields} | NEGATED_NAMES.keys()
    engines = {
        *catalogue.options.names,
        *CANONICAL_NAMES,
        *SPECULATIVE_KEYS,
        *OPTION_BY_SETTING,
    } - fields
    removed = {*history.load_history()["removed"]["options"], *REMOVED_SETTINGS} - fields - engines
    return {
        "vllm": release,
        "cuda": CUDA,
        "embedder": EMBEDDER_PREFIX,
        "secrets": sorted(SECRET_VARIABLES),
        "own": sorted(fields),
        "engines": sorted(engines),
        "variables": sorted({*LIBRARY_VARIABLES, *FOREIGN_OPTIONS, *catalogue.options.variables}),
        "meant": dict(sorted(CORRECTIONS.items())),
        "removed": {name: explain_removal(name) for name in sorted(removed)},
        "values": dict(sorted(_describe_values(catalogue).items())),
    }


def _describe_values(catalogue: Catalogue) -> dict[str, dict[str, Any]]:
    """Describe the accepted values of settings, as far as their text alone can be checked."""
    checks = {name: _describe_option(catalogue, name) for name in catalogue.options.names}
    checks |= {alias: checks[option] for alias, option in OPTION_BY_SETTING.items()}
    checks |= {name.upper(): _describe_own_setting(name) for name in Settings.model_fields}
    names = CANONICAL_NAMES.items() | NEGATED_NAMES.items()
    checks |= {other: checks[name] for other, name in names if name in checks}
    return {name: value for name, value in checks.items() if value}


def _describe_option(catalogue: Catalogue, name: str) -> dict[str, Any]:
    option = catalogue.options[name]
    if option.choices and option.kind == "text":
        return {"choices": [*option.choices], "example": option.example}
    if option.kind not in _CHECKABLE_KINDS:
        return {}
    other_values = {value for other, value in UNSET_VALUES if other == name}
    if option.kind in {"integer", "size"} and not catalogue.find_mistakes(name, "auto"):
        other_values |= {"auto"}
    return _describe_checks(option.kind, option.bounds, other_values) | {"example": option.example}


def _describe_own_setting(name: str) -> dict[str, Any]:
    field = Settings.model_fields[name]
    if name in {"model_name", "embedding_model_name"}:
        return _MODEL_NAME_CHECKS | {"example": example_value(name.upper())}
    if field.annotation == get_args(Concurrency)[0]:
        return _describe_checks("integer", {"ge": 1}, {"auto"})
    setting = list_own_setting(Row(name.upper(), "", ""), field)
    if setting.choices:
        return {"choices": [*setting.choices]}
    if setting.kind not in _CHECKABLE_KINDS:
        return {}
    return _describe_checks(setting.kind, read_bounds(without_none(field)), set())


def _describe_checks(kind: str, bounds: dict[str, float], other_values: set[str]) -> dict[str, Any]:
    accepted = ", or ".join([*({"auto"} & other_values), describe_value_kind(kind, bounds)])
    entry = {"kind": kind, "bounds": bounds, "also": sorted(other_values), "accepted": accepted}
    return {key: value for key, value in entry.items() if value}
