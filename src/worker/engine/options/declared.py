"""What vLLM's parser and its configuration classes declare of an option: type, choices, bounds."""

import argparse
import enum
import functools
import importlib.metadata
import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin


@functools.cache
def plugged() -> bool:
    """Tell whether anything is installed that brings vLLM more than it has itself."""
    found = importlib.metadata.entry_points(group="vllm.general_plugins")
    return any(point.dist and not point.dist.name.startswith("vllm") for point in found)


def kind_of(action: argparse.Action) -> str:
    """Find out what an option takes by trying its conversion, which may be any function."""
    if action.nargs == 0:
        return "boolean"
    if action.nargs == "+":
        return "list"
    if action.choices:
        return "text"
    probes = (("{}", "json", object), ("1k", "size", int), ("0.5", "number", float))
    for probe, kind, made in (*probes, ("1", "integer", int)):
        converted = _converted(action, probe)
        if isinstance(converted, made) and not isinstance(converted, str | list | None):
            return kind
    return "text"


def _converted(action: argparse.Action, probe: str) -> Any:
    """Convert a text as an option does; None where it can't be."""
    convert: Any = action.type or str
    try:
        return convert(probe)
    except (ValueError, TypeError, argparse.ArgumentTypeError):
        return None


def literals(annotation: Any) -> Iterator[str]:
    """Find the texts that a type lists."""
    if get_origin(annotation) is Literal:
        yield from (str(each) for each in get_args(annotation))
    elif isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        for each in annotation:
            # Not what no operator writes: nothing, or a path of a class of vLLM's.
            value = str(each.value)
            written = value if each.value is not None and re.fullmatch(r"\w+", value) else each.name
            yield written
            if written.lower() != each.name.lower():
                yield each.name
    else:
        for part in get_args(annotation):
            yield from literals(part)


def fields_of(config: Any) -> dict[str, Any]:
    return getattr(config, "__pydantic_fields__", {})


def field_of(config: Any, dest: str) -> Any:
    """Find the field that an option sets: of a class of vLLM's configuration, or of a part of it.

    AttentionConfig calls its field ``backend`` that ``attention_backend`` sets.
    """
    own = fields_of(config)
    prefix = f"{getattr(config, '__name__', '').removesuffix('Config').lower()}_"
    parts = [fields_of(each.annotation) for each in own.values()]
    for fields in (own, *parts):
        for name in (dest, dest.removeprefix(prefix)):
            if name in fields:
                return fields[name]
    return None
