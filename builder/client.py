"""The listing of settings that ships with the client, which has neither the worker nor vLLM."""

from typing import Any, get_args

from forms import CUDA, PROPOSED
from listed import Catalogue, own
from table import Row

from worker.engine.options import UNSET
from worker.engine.options.option import bounds_of, in_words
from worker.settings import Jobs, Settings, history
from worker.settings.environment import SECRETS
from worker.settings.examples import example
from worker.settings.names import (
    ALIASES,
    EMBEDDER,
    FOR_LIBRARIES,
    FOREIGN,
    MEANT,
    OPPOSITES,
    REMOVED,
    SPECULATIVE,
    SPELLINGS,
    removed,
)
from worker.settings.values import NO_REPOSITORY, REPOSITORY, STORAGE

# Kinds of which a text alone shows whether it is one.
_CHECKED = frozenset({"boolean", "integer", "json", "list", "number", "size"})
# A model's name; whether there is such a directory only the worker can know.
_MODEL = {"pattern": rf"{REPOSITORY}|{STORAGE}|[/.~].*", "accepted": NO_REPOSITORY}


def settings(catalogue: Catalogue, release: str) -> dict[str, Any]:
    """List the settings and what they take, for checks of what an endpoint is given.

    Args:
        catalogue: all settings.
        release: of vLLM, which the listing is for.
    """
    fields = {name.upper() for name in Settings.model_fields} | OPPOSITES.keys()
    engines = {*catalogue.options.names, *SPELLINGS, *SPECULATIVE, *ALIASES} - fields
    gone = {*history.record()["removed"]["options"], *REMOVED} - fields - engines
    return {
        "vllm": release,
        "cuda": CUDA,
        "proposed": PROPOSED,
        "embedder": EMBEDDER,
        "secrets": sorted(SECRETS),
        "own": sorted(fields),
        "engines": sorted(engines),
        "variables": sorted({*FOR_LIBRARIES, *FOREIGN, *catalogue.options.variables}),
        "meant": dict(sorted(MEANT.items())),
        "removed": {name: removed(name) for name in sorted(gone)},
        "values": dict(sorted(_values(catalogue).items())),
    }


def _values(catalogue: Catalogue) -> dict[str, dict[str, Any]]:
    """Say which values settings take, as far as a text alone shows it."""
    found = {name: _of_option(catalogue, name) for name in catalogue.options.names}
    found |= {alias: found[option] for alias, option in ALIASES.items()}
    found |= {name.upper(): _own(name) for name in Settings.model_fields}
    names = SPELLINGS.items() | OPPOSITES.items()
    found |= {other: found[name] for other, name in names if name in found}
    return {name: value for name, value in found.items() if value}


def _of_option(catalogue: Catalogue, name: str) -> dict[str, Any]:
    option = catalogue.options[name]
    if option.choices and option.kind == "text":
        return {"choices": [*option.choices], "example": option.example}
    if option.kind not in _CHECKED:
        return {}
    also = {value for other, value in UNSET if other == name}
    if option.kind in {"integer", "size"} and not catalogue.mistakes(name, "auto"):
        also |= {"auto"}
    return _kind(option.kind, option.bounds, also) | {"example": option.example}


def _own(name: str) -> dict[str, Any]:
    field = Settings.model_fields[name]
    if name in {"model_name", "embedding_model_name"}:
        return _MODEL | {"example": example(name.upper())}
    if field.annotation == get_args(Jobs)[0]:
        return _kind("integer", {"ge": 1}, {"auto"})
    listed = own(Row(name.upper(), "", title="", meaning=""), field)
    if listed.choices:
        return {"choices": [*listed.choices]}
    if listed.kind not in _CHECKED:
        return {}
    return _kind(listed.kind, bounds_of(field), set())


def _kind(kind: str, bounds: dict[str, float], also: set[str]) -> dict[str, Any]:
    accepted = ", or ".join([*({"auto"} & also), in_words(kind, bounds)])
    known = {"kind": kind, "bounds": bounds, "also": sorted(also), "accepted": accepted}
    return {key: value for key, value in known.items() if value}
