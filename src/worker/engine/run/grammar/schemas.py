"""Reads JSON schemas and structural tags: the regular expressions in them, and large counts."""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

# Keywords whose values are texts or examples, not schemas.
LITERAL_KEYWORDS = frozenset({"const", "default", "description", "enum", "examples", "title"})
# Keywords of objects whose keys are names that the caller chooses.
NAME_KEYWORDS = frozenset("properties patternProperties $defs definitions dependentSchemas".split())
COUNT_KEYWORDS = ("maxLength", "minLength", "maxItems", "minItems", "maxProperties")
# Counts, and numbers of values, below which a schema is not the reason for a slow grammar.
MIN_COUNT, MIN_VALUES = 1_000, 100
# Characters of a name in a message.
MAX_NAME_CHARACTERS = 64

QUANTIFIER = re.compile(r"[*+?{]")
# The name in the beginning of a call, as most models write it.
NAME_IN_CALL = re.compile(r'"name": ?"([^"]{1,256})"')


class Place(NamedTuple):
    """A schema in a schema or structural tag, with the tool and the property that it belongs to."""

    schema: dict[str, Any]
    tool: str = ""
    names: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        """The tool and the property, such as ``tool 'search', property 'filters.date'``."""
        path = ".".join(self.names)
        parts = {"tool": self.tool, "property": path[-MAX_NAME_CHARACTERS:]}
        return ", ".join(f"{kind} {name!r}" for kind, name in parts.items() if name)

    @property
    def regexes(self) -> list[str]:
        """The schema's own regular expressions in which a count could be inside or after another.

        All others are quick to follow.
        """
        keyed = self.schema.get("patternProperties")
        values = [self.schema.get("pattern"), *(keyed if isinstance(keyed, dict) else ())]
        return [
            value
            for value in values
            if isinstance(value, str) and len(QUANTIFIER.findall(value)) > 1
        ]

    @property
    def size(self) -> int:
        """The schema's largest count, or its number of values or properties."""
        counts = [count for key in COUNT_KEYWORDS if isinstance(count := self.schema.get(key), int)]
        lengths = (
            len(values)
            for key in ("enum", "properties")
            if isinstance(values := self.schema.get(key), list | dict) and len(values) > MIN_VALUES
        )
        return max(*(count for count in counts if count > MIN_COUNT), *lengths, 0, 0)


def find_places(spec: str) -> Iterator[Place]:
    """Yield all schemas in a JSON schema or a structural tag; ``spec`` is its JSON."""
    try:
        pending: list[tuple[Any, str, tuple[str, ...]]] = [(json.loads(spec), "", ())]
    except (ValueError, RecursionError):
        return  # vLLM reports the mistake
    while pending:
        value, tool, names = pending.pop()
        if isinstance(value, list):
            pending += [(item, tool, names) for item in reversed(value)]
        if not isinstance(value, dict):
            continue
        tool = _tool_name(value) or tool
        yield Place(value, tool, names)
        for key, nested in reversed(value.items()):
            if key in NAME_KEYWORDS and isinstance(nested, dict):
                # In the schema of a tool's call, the property is one of the tool's parameters.
                is_call = "parameters" in nested and tool
                pending += [
                    (schema, tool, names if is_call or key != "properties" else (*names, name))
                    for name, schema in reversed(nested.items())
                ]
            elif key not in LITERAL_KEYWORDS:
                pending.append((nested, tool, names))


def find_largest(spec: str) -> str:
    """Describe the place with the largest count or the most values; empty if none is large."""
    largest = max(find_places(spec), key=lambda place: place.size, default=None)
    return largest.description if largest and largest.size else ""


def _tool_name(schema: dict[str, Any]) -> str:
    """Return the name of the tool whose call a schema or a tag describes; empty for all others."""
    if isinstance(begin := schema.get("begin"), str):
        call = NAME_IN_CALL.search(begin)
        return (call[1] if call else begin)[-MAX_NAME_CHARACTERS:]
    match schema.get("properties"):
        # vLLM's schema for the calls of tools that a request requires.
        case {"name": {"enum": [str() as name]}, "parameters": _}:
            return name[:MAX_NAME_CHARACTERS]
    return ""
