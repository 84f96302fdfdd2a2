"""What vLLM's parser and configuration classes declare for an option: type, choices, bounds."""

import argparse
import contextlib
import enum
import functools
import importlib.metadata
import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin


@functools.cache
def plugged() -> bool:
    """True if a plugin is installed that may add choices to vLLM's options."""
    found = importlib.metadata.entry_points(group="vllm.general_plugins")
    return any(point.dist and not point.dist.name.startswith("vllm") for point in found)


def kind_of(action: argparse.Action) -> str:
    """Return which kind of value an option takes: a key of ``option.ACCEPTED``.

    Found out by trying the option's conversion, which may be any function.
    """
    if action.nargs == 0:
        return "boolean"
    if action.nargs == "+":
        return "list"
    if action.choices:
        return "text"
    convert: Any = action.type or str
    probes = (("{}", "json", object), ("1k", "size", int), ("0.5", "number", float))
    for probe, kind, made in (*probes, ("1", "integer", int)):
        with contextlib.suppress(ValueError, TypeError, argparse.ArgumentTypeError):
            converted = convert(probe)
            if isinstance(converted, made) and not isinstance(converted, str | list | None):
                return kind
    return "text"


def literals(annotation: Any) -> Iterator[str]:
    """Yield the texts that a type lists: a Literal's, an Enum's, or those of a union's parts."""
    if get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    elif isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        for member in annotation:
            # Some members have None, or the path of a class, as their value.
            value = str(member.value)
            usable = member.value is not None and re.fullmatch(r"\w+", value)
            written = value if usable else member.name
            yield written
            if written.lower() != member.name.lower():
                yield member.name
    else:
        for part in get_args(annotation):
            yield from literals(part)


def fields_of(config: Any) -> dict[str, Any]:
    return getattr(config, "__pydantic_fields__", {})


def field_of(config: Any, dest: str) -> Any:
    """Find the field that an option sets, in a configuration class or in one of its parts.

    The field may lack the class's name: ``attention_backend`` sets ``AttentionConfig.backend``.
    """
    own = fields_of(config)
    prefix = f"{getattr(config, '__name__', '').removesuffix('Config').lower()}_"
    parts = [fields_of(field.annotation) for field in own.values()]
    for fields in (own, *parts):
        for name in (dest, dest.removeprefix(prefix)):
            if name in fields:
                return fields[name]
    return None
