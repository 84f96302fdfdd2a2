"""The tables of ``rows``: a section says what its values are, and a row where they are put.

    body:
      a refused stream (chat|completions) either, harmful, x100: {stream: true, …}

These are two rows, one for each place (``*``: all of the section). The words behind the places say
what is expected (refused, if nothing else), that it did harm once, how often it is sent at once,
and another time limit (``180s``). What is large is written as a tag, and made when it is sent.
"""

import functools
import operator
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import SafeConstructor

from support.tables.attacks.media import within_session
from support.tables.attacks.places import GROUPS, PLACES
from support.tables.attacks.row import Attack, Expected

ROWS = Path(__file__).with_name("rows")
NAME = re.compile(r"(?P<name>.*) \((?P<places>[^()]*)\)(?P<words>[^()]*)")
POWER = re.compile(r"(-?)(\d+)\*\*(\d+)(?: ([+-]) (\d+))?")


class _Loader(yaml.CSafeLoader):
    """Reads nodes; ``2**63 - 1`` and ``1e300`` are numbers."""


_Loader.add_implicit_resolver("!power", re.compile(f"{POWER.pattern}$"), [*"-0123456789"])
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"-?\d+e-?\d+$"), [*"-0123456789"]
)


class _Values(SafeConstructor):
    """Makes values of nodes."""


def read(kind: str) -> Iterator[Attack]:
    """Yield the rows of a table; what starts with a dot has only what its rows share."""
    root: Any = yaml.compose((ROWS / f"{kind}.yaml").read_text(), _Loader)
    for section, table in root.value:
        if section.value.startswith("."):
            continue
        places = PLACES[section.value]
        for key, node in table.value:
            row = NAME.fullmatch(key.value)
            assert row, key.value
            options = _options(row["words"].replace(",", " ").split())
            for place in _names(row["places"], section.value):
                build = functools.partial(_build, places[place], node)
                yield Attack(f"{row['name']} ({place})", build, **options)


def _names(chosen: str, section: str) -> Iterator[str]:
    if chosen == "*":
        yield from PLACES[section]
        return
    for name in chosen.split("|"):
        yield from GROUPS.get(name, [name])


def _options(words: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for word in words:
        if word == "harmful":
            options["harmful"] = True
        elif word.startswith("x"):
            options["times"] = int(word[1:])
        elif word.endswith("s"):
            options["limit_s"] = float(word[:-1])
        else:
            options["expected"] = Expected(word)
    return options


def _build(place: Callable[[Any], Any], node: yaml.Node) -> Any:
    return place(_Values().construct_document(node))


def _many(count: int, each: Any) -> list[Any]:
    """Return a list of so many; ``@`` stands for the number of each, ``@+1`` for the next one."""
    if "@" not in repr(each):
        return [each] * count
    return [_numbered(each, number) for number in range(count)]


def _numbered(each: Any, number: int) -> Any:
    match each:
        case "@":
            return number
        case str():
            return each.replace("@+1", str(number + 1)).replace("@", str(number))
        case dict():
            return {_numbered(k, number): _numbered(v, number) for k, v in each.items()}
        case list():
            return [_numbered(value, number) for value in each]
    return each


def _keys(count: int, key: str, each: Any = "@") -> dict[str, Any]:
    return {key.replace("@", str(number)): value for number, value in enumerate(_many(count, each))}


def _join(first: Any, *others: Any) -> Any:
    """Join texts, lists or objects."""
    add = operator.or_ if isinstance(first, dict) else operator.add
    return functools.reduce(add, others, first)


def _deep(depth: int) -> dict[str, Any]:
    """Return the schema of objects within objects."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


# Tags of a value, or of a list of arguments.
TAGS: dict[str, Callable[..., Any]] = {
    "!times": lambda count, text: text * count,
    "!many": _many,
    "!keys": _keys,
    "!join": _join,
    "!separated": lambda separator, texts: separator.join(texts),
    "!session": within_session,
    "!unicode": lambda code: chr(int(code, 16)),
    "!deep": lambda depth: _deep(int(depth)),
}


def _power(text: str) -> int:
    sign, base, exponent, step, distance = POWER.findall(text)[0]
    return int(f"{sign}{int(base) ** int(exponent)}") + int(f"{step}{distance or 0}")


def _tag(
    make: Callable[..., Any], values: _Values, node: yaml.SequenceNode | yaml.ScalarNode
) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return make(*values.construct_sequence(node, deep=True))
    return make(values.construct_scalar(node))


for _name, _make in {**TAGS, "!power": _power}.items():
    _Values.add_constructor(_name, functools.partial(_tag, _make))
