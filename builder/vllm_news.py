"""Lists the changes of another release of vLLM that concern the worker (``nox -s vllm_news``).

``PYTHONPATH=src .venv/bin/python builder/vllm_news.py .nox/vllm_news/bin/python`` compares the vLLM
of that Python with the vLLM of the Python that runs the script.
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
from worker.engine.seam.locations import LOCATIONS, import_from_vllm

# A text for each name of a kind, such as its default or its module. If a kind could not be read, a
# release has an error message instead.
Names = Mapping[str, str]
Release = Mapping[str, Names | str]

_ENGINE = Path(locations.__file__).parents[1]
# The routes for all of these tasks are built.
_TASKS = ("generate", "embed", "classify", "score", "transcription")
# Errors that vLLM raises if its interface has changed.
_INTERFACE_ERRORS = (AttributeError, ImportError, KeyError, TypeError, ValueError)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def read_installed() -> dict[str, Any]:
    """Read the version and the names of each kind of the vLLM that is installed here."""
    names_by_kind: dict[str, Any] = {"version": Version(vllm.__version__).public}
    for kind, names in _KINDS.items():
        try:
            names_by_kind[kind] = names()
        except _INTERFACE_ERRORS as error:
            names_by_kind[kind] = f"{type(error).__name__}: {error}"
    return names_by_kind


def read_release_of(python: str) -> dict[str, Any]:
    """Read the same of another Python's vLLM, by running this script with that Python."""
    process = subprocess.run([python, __file__], stdout=subprocess.PIPE, text=True, check=True)
    names_by_kind: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return names_by_kind


def compare_releases(pinned: Release, other: Release) -> str:
    """Return the differences of another release, with one line per name."""
    lines = [
        f"vLLM {other['version']} compared with {pinned['version']}:"
        f" + added in {other['version']}, - removed, ~ changed"
    ]
    for kind in _KINDS:
        lines += ["", kind, *(_differences(pinned[kind], other[kind]) or ["  nothing moved"])]
    return "\n".join(lines)


def _differences(pinned: Names | str, other: Names | str) -> list[str]:
    """Return the lines about one kind."""
    if isinstance(other, str):
        return [f"  could not be read: {other}"]
    if isinstance(pinned, str):
        return [f"  could not be read: {pinned}"]
    added = [f"  + {_line(name, other)}" for name in sorted(other.keys() - pinned.keys())]
    removed = [f"  - {_line(name, pinned)}" for name in sorted(pinned.keys() - other.keys())]
    both = sorted(pinned.keys() & other.keys())
    changed = [name for name in both if pinned[name] != other[name]]
    return [*added, *removed, *(f"  ~ {name}: {pinned[name]} -> {other[name]}" for name in changed)]


def _line(name: str, names: Names) -> str:
    return f"{name}: {names[name]}" if names[name] else name


def _options() -> dict[str, str]:
    """Return the defaults of the options of engine and server."""
    parser = import_from_vllm("make_arg_parser")(import_from_vllm("FlexibleArgumentParser")())
    return {
        name: _ADDRESS.sub("", repr(default))
        for action in parser._actions
        if action.option_strings
        for name, default in _defaults(action.dest.upper(), action.default)
    }


def _defaults(name: str, default: Any) -> Iterator[tuple[str, Any]]:
    """Yield an option's default, or the defaults of its fields if it is a configuration."""
    if dataclasses.is_dataclass(default):
        for field in dataclasses.fields(default):
            yield f"{name}.{field.name}", getattr(default, field.name, None)
    else:
        yield name, default


def _app() -> Any:
    parser = import_from_vllm("make_arg_parser")(import_from_vllm("FlexibleArgumentParser")())
    return import_from_vllm("build_app")(parser.parse_args(["--model", "org/name"]), _TASKS)


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
    return dict(_find_seam_names())


def _find_seam_names() -> Iterator[tuple[str, str]]:
    for name, modules in sorted({**LOCATIONS, **_find_imports()}.items()):
        module = next((module for module in modules if _has(module, name)), None)
        if module is None:
            continue
        yield name, module
        value = getattr(importlib.import_module(module), name)
        if callable(value):
            yield from ((f"{name}({parameter})", "") for parameter in _parameters(value))


def _find_imports() -> dict[str, tuple[str, ...]]:
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


def _parameters(value: Any) -> list[str]:
    try:
        return list(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        # It belongs to a compiled module, or to a class without a signature.
        return []


def _list_registered(manager: str) -> Callable[[], dict[str, str]]:
    return lambda: dict.fromkeys(import_from_vllm(manager).list_registered(), "")


_KINDS: Mapping[str, Callable[[], dict[str, str]]] = {
    "names that the worker uses": _seam,
    "options, with their defaults": _options,
    "routes": _routes,
    "fields of requests": _fields,
    "architectures": lambda: dict.fromkeys(
        import_from_vllm("ModelRegistry").get_supported_archs(), ""
    ),
    "tool parsers": _list_registered("ToolParserManager"),
    "reasoning parsers": _list_registered("ReasoningParserManager"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "other",
        nargs="?",
        help="Python of the other release; without it, print the installed names",
    )
    other = parser.parse_args().other
    print(
        compare_releases(read_installed(), read_release_of(other))
        if other
        else json.dumps(read_installed())
    )


if __name__ == "__main__":
    main()
