"""Reads the tables of ``rows``: a section is a kind of value, and a row has its places.

    body:
      a refused stream (chat|completions) either, harmful, x100: {stream: true, …}

These are two rows, one for each place. A place is a name in the section of the same name in the
part ``within`` of ``places.yaml``. For ``body`` it is an input or a route there, ``params`` (keys
of ``sampling_params``), ``job`` (a whole input) or ``json`` (its text). The name of a group means
all its places, ``*`` all places of the section. ``content`` among a value's keys becomes a user's
message. A section whose name starts with a dot only contains anchors (``&``) for the others.

The words after the places are the expected response (refused by default), whether the request has
done harm before, the number of concurrent requests, and another time limit (``180s``). Large values
are written as tags, and created when the request is sent:

    !times [3, ab]                      "ababab"; also repeats a list
    !many [3, {a: "@", b: x@+1}]        a list of 3; @ is the item's index from 0, @+1 the next one
    !keys [2, k@, v]                    {k0: v, k1: v}; without a value, the key's index
    !join [[0], [1], [2]]               [0, 1, 2]; also joins strings or objects
    !separated [", ", [a, b]]           "a, b"
    !session [video/mp4, "AVI "]        a data URL: a session description after magic bytes
    !unicode d800                       the character with this hexadecimal code
    !deep 60                            the schema of 60 nested objects
"""

import functools
import operator
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import SafeConstructor

from support.tables.attacks.media import session_url
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
    """Constructs values from nodes."""


def read(kind: str) -> Iterator[Attack]:
    """Yield the rows of a table."""
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


def _many(count: int, item: Any) -> list[Any]:
    if "@" not in repr(item):
        return [item] * count
    return [_number(item, number) for number in range(count)]


def _number(item: Any, number: int) -> Any:
    match item:
        case "@":
            return number
        case str():
            return item.replace("@+1", str(number + 1)).replace("@", str(number))
        case dict():
            return {_number(k, number): _number(v, number) for k, v in item.items()}
        case list():
            return [_number(value, number) for value in item]
    return item


def _keys(count: int, key: str, value: Any = "@") -> dict[str, Any]:
    return {key.replace("@", str(number)): item for number, item in enumerate(_many(count, value))}


def _join(first: Any, *others: Any) -> Any:
    add = operator.or_ if isinstance(first, dict) else operator.add
    return functools.reduce(add, others, first)


def _deep(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


# Tags for a value, or for a list of arguments.
TAGS: dict[str, Callable[..., Any]] = {
    "!times": lambda count, text: text * count,
    "!many": _many,
    "!keys": _keys,
    "!join": _join,
    "!separated": lambda separator, texts: separator.join(texts),
    "!session": session_url,
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
