"""Lists what another release of vLLM moves, as the worker sees it (``make vllm-news``).

``PYTHONPATH=src .venv/bin/python builder/vllm_news.py .vllm/0.33.0/bin/python`` compares the vLLM
of that Python to the one that runs the script.
"""

import argparse
import ast
import dataclasses
import importlib
import inspect
import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import vllm
from packaging.version import Version

from worker.engine.seam import locations
from worker.engine.seam.locations import LOCATIONS, find

# What is said of each name of a kind: its default, its module. A text if it can't be read.
Names = Mapping[str, str]
Release = Mapping[str, Names | str]

_ENGINE = Path(locations.__file__).parents[1]
# Routes of all of them are built.
_TASKS = ("generate", "embed", "classify", "score", "transcription")
# What vLLM raises where it is called in a way that it no longer takes.
_MOVED = (AttributeError, ImportError, KeyError, TypeError, ValueError)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def installed() -> dict[str, Any]:
    """Read the vLLM that is installed here: its version, and the names of each kind."""
    read: dict[str, Any] = {"version": Version(vllm.__version__).public}
    for kind, names in _KINDS.items():
        try:
            read[kind] = names()
        except _MOVED as error:
            read[kind] = f"{type(error).__name__}: {error}"
    return read


def installed_for(python: str) -> dict[str, Any]:
    """Read the vLLM of another Python, by running this script there."""
    script = subprocess.run([python, __file__], stdout=subprocess.PIPE, text=True, check=True)
    read: dict[str, Any] = json.loads(script.stdout.splitlines()[-1])
    return read


def news(pinned: Release, other: Release) -> str:
    """Return what another release moves, a line for each name."""
    lines = [
        f"vLLM {other['version']} against {pinned['version']}:"
        f" + only {other['version']} has it, - it lacks it, ~ it differs there"
    ]
    for kind in _KINDS:
        lines += ["", kind, *(_moves(pinned[kind], other[kind]) or ["  nothing moved"])]
    return "\n".join(lines)


def _moves(pinned: Names | str, other: Names | str) -> list[str]:
    """Return the lines about a kind."""
    if isinstance(other, str):
        return [f"  could not be read: {other}"]
    if isinstance(pinned, str):
        return [f"  could not be read: {pinned}"]
    came = [f"  + {_line(name, other)}" for name in sorted(other.keys() - pinned.keys())]
    went = [f"  - {_line(name, pinned)}" for name in sorted(pinned.keys() - other.keys())]
    both = sorted(pinned.keys() & other.keys())
    differ = [name for name in both if pinned[name] != other[name]]
    return [*came, *went, *(f"  ~ {name}: {pinned[name]} -> {other[name]}" for name in differ)]


def _line(name: str, names: Names) -> str:
    return f"{name}: {names[name]}" if names[name] else name


def _options() -> dict[str, str]:
    """Return the defaults of the options of engine and server."""
    parser = find("make_arg_parser")(find("FlexibleArgumentParser")())
    return {
        name: _ADDRESS.sub("", repr(default))
        for action in parser._actions
        if action.option_strings
        for name, default in _defaults(action.dest.upper(), action.default)
    }


def _defaults(name: str, default: Any) -> Iterator[tuple[str, Any]]:
    """Yield an option's default; of a configuration, those of its fields."""
    if dataclasses.is_dataclass(default):
        for field in dataclasses.fields(default):
            yield f"{name}.{field.name}", getattr(default, field.name, None)
    else:
        yield name, default


def _app() -> Any:
    parser = find("make_arg_parser")(find("FlexibleArgumentParser")())
    return find("build_app")(parser.parse_args(["--model", "org/name"]), _TASKS)


def _routes() -> dict[str, str]:
    return {
        route.path: " ".join(sorted(getattr(route, "methods", None) or ()))
        for route in _app().routes
    }


def _fields() -> dict[str, str]:
    """Return the fields of the bodies of all routes, with their types."""
    return {
        f"{route.path} {name}": _ADDRESS.sub("", str(field.annotation))
        for route in _app().routes
        for body in getattr(getattr(route, "dependant", None), "body_params", ())
        for name, field in getattr(body.field_info.annotation, "model_fields", {}).items()
    }


def _seam() -> dict[str, str]:
    """Return the modules of the names that the worker uses, and the parameters of these names."""
    return dict(_found())


def _found() -> Iterator[tuple[str, str]]:
    for name, modules in sorted({**LOCATIONS, **_imported()}.items()):
        module = next((module for module in modules if _has(module, name)), None)
        if module is None:
            continue
        yield name, module
        there = getattr(importlib.import_module(module), name)
        if callable(there):
            yield from ((f"{name}({parameter})", "") for parameter in _parameters(there))


def _imported() -> dict[str, tuple[str, ...]]:
    """Return the names that the worker's modules import from vLLM, with their modules."""
    sources = (path.read_text() for path in _ENGINE.rglob("*.py"))
    return {
        name.name: (statement.module,)
        for source in sources
        for statement in ast.walk(ast.parse(source))
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("vllm.")
        for name in statement.names
        if statement.module
    }


def _has(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        return False


def _parameters(there: Any) -> list[str]:
    try:
        return list(inspect.signature(there).parameters)
    except (TypeError, ValueError):
        # One of a compiled module, or of a class that takes none.
        return []


def _listed(manager: str) -> Callable[[], dict[str, str]]:
    return lambda: dict.fromkeys(find(manager).list_registered(), "")


_KINDS: Mapping[str, Callable[[], dict[str, str]]] = {
    "names that the worker uses": _seam,
    "options, with their defaults": _options,
    "routes": _routes,
    "fields of requests": _fields,
    "architectures": lambda: dict.fromkeys(find("ModelRegistry").get_supported_archs(), ""),
    "tool parsers": _listed("ToolParserManager"),
    "reasoning parsers": _listed("ReasoningParserManager"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", nargs="?", help="its Python; without, print what is installed")
    other = parser.parse_args().other
    print(news(installed(), installed_for(other)) if other else json.dumps(installed()))


if __name__ == "__main__":
    main()
