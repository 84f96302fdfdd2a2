"""Reads an option's type, choices and bounds from vLLM's parser and configuration classes."""

import argparse
import contextlib
import enum
import functools
import importlib.metadata
import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin


@functools.cache
def has_third_party_plugins() -> bool:
    """Return whether a plugin is installed that may add choices to vLLM's options."""
    entry_points = importlib.metadata.entry_points(group="vllm.general_plugins")
    return any(point.dist and not point.dist.name.startswith("vllm") for point in entry_points)


def detect_value_kind(action: argparse.Action) -> str:
    """Return the kind of an option's values, which is a key of ``option.ACCEPTED_VALUES``.

    The option's conversion may be any function, so it is called with sample values.
    """
    if action.nargs == 0:
        return "boolean"
    if action.nargs == "+":
        return "list"
    if action.choices:
        return "text"
    convert: Any = action.type or str
    probes = (("{}", "json", object), ("1k", "size", int), ("0.5", "number", float))
    for probe, kind, cls in (*probes, ("1", "integer", int)):
        with contextlib.suppress(ValueError, TypeError, argparse.ArgumentTypeError):
            converted = convert(probe)
            if isinstance(converted, cls) and not isinstance(converted, str | list | None):
                return kind
    return "text"


def literal_or_enum_values(annotation: Any) -> Iterator[str]:
    """Yield the values of a Literal or an Enum as strings, also if it is a member of a union."""
    if get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    elif isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        for member in annotation:
            # Operators write the name of a member whose value is None or the path of a class.
            value = str(member.value)
            is_writable = member.value is not None and re.fullmatch(r"\w+", value)
            spelling = value if is_writable else member.name
            yield spelling
            if spelling.lower() != member.name.lower():
                yield member.name
    else:
        for part in get_args(annotation):
            yield from literal_or_enum_values(part)


def pydantic_fields(config: Any) -> dict[str, Any]:
    return getattr(config, "__pydantic_fields__", {})


def find_config_field(config: Any, dest: str) -> Any:
    """Return the field of a configuration class, or of a class in it, that an option sets, if any.

    The field may lack the class's name: ``attention_backend`` sets ``AttentionConfig.backend``.
    """
    own_fields = pydantic_fields(config)
    prefix = f"{getattr(config, '__name__', '').removesuffix('Config').lower()}_"
    nested_fields = [pydantic_fields(field.annotation) for field in own_fields.values()]
    for fields in (own_fields, *nested_fields):
        for name in (dest, dest.removeprefix(prefix)):
            if name in fields:
                return fields[name]
    return None
