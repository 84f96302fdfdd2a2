"""Hostile requests, by kind: each has done harm before, or an attacker may expect it to.

The tables are in ``rows``: a section is a kind of value, and a row has its places.

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

import base64
import functools
import json
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import SafeConstructor

# Placeholder for a word that is new each time: no cache contains the request then, and the log is
# searched for the word.
CANARY = "canary-7f3a"

# Placeholder for the port of a server on loopback that no request may reach.
PORT = "CANARYPORT"


class Expected(StrEnum):
    """The expected response to a request."""

    REFUSED = "refused"  # a status of 4xx
    ANSWERED = "answered"  # 200
    EITHER = "either"  # both are correct


@dataclass(frozen=True)
class Attack:
    """One row of a table."""

    name: str
    # Returns the request: a job's input, its JSON as bytes, or an `Http` request.
    build: Callable[[], Any]
    expected: Expected = Expected.REFUSED
    # Whether the request has done harm before.
    harmful: bool = False
    # Number of concurrent requests.
    times: int = 1
    # Seconds within which the response must arrive; more for rows that are inherently slow.
    limit_s: float = 60.0


@dataclass(frozen=True)
class Http:
    """A request to the HTTP server."""

    method: str = "POST"
    path: str = "/v1/completions"
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    # Seconds after which the caller disconnects; 0 for never.
    patience_s: float = 0

    @property
    def all_headers(self) -> dict[str, str]:
        defaults = {
            "Host": "localhost",
            "Content-Type": "application/json",
            "Content-Length": str(len(self.body)),
        }
        return {**defaults, **self.headers}


# FFmpeg parses this as a session description if it recognizes no other format, and opens the port.
SESSION_PORT = 47004
SESSION = f"""
v=0
o=- 0 0 IN IP4 127.0.0.1
s=x
c=IN IP4 127.0.0.1
t=0 0
m=video {SESSION_PORT} RTP/AVP 96
a=rtpmap:96 H264/90000
""".encode()


def session_url(type_: str, mark: str) -> str:
    """Return a data URL with a session description after the magic bytes of a format."""
    return f"data:{type_};base64,{base64.b64encode(mark.encode() + SESSION).decode()}"


Body = dict[str, Any]

_DATA = yaml.safe_load(Path(__file__).with_name("places.yaml").read_text())
INPUTS: dict[str, Body] = _DATA["inputs"]
ROUTES: dict[str, tuple[str, Body]] = _DATA["routes"]
GROUPS: dict[str, list[str]] = _DATA["groups"]
HERE = "HERE"


def put(place: str, value: Any) -> Any:
    """Return a payload with a value, usually an object; ``content`` becomes a user's message."""
    match place:
        case "job":
            return value
        case "json":
            return value.encode()
        case "server":
            return Http(**{**value, "body": _encode(value.get("body", b""))})
        case "params":
            return put("raw", {"sampling_params": INPUTS["raw"]["sampling_params"] | value})
    if "content" in value and not place.startswith("batch"):
        messages = [{"role": "user", "content": value["content"]}]
        value = {key: inner for key, inner in value.items() if key != "content"}
        value["input" if place == "responses" else "messages"] = messages
    if place in INPUTS:
        return INPUTS[place] | value
    path, usual = ROUTES[place]
    return {"route": path, "method": "POST", "body": usual | value}


def _encode(body: Any) -> bytes:
    """Return the bytes of a body, which may be bytes, a string or an object to encode as JSON."""
    if isinstance(body, bytes):
        return body
    return (body if isinstance(body, str) else json.dumps(body)).encode()


def _put_within(place: str, template: Any, value: Any) -> Any:
    return put(place, _fill(template, value))


def _fill(template: Any, value: Any) -> Any:
    if template == HERE:
        return value
    match template:
        case str() if HERE in template:
            return template.replace(HERE, value)
        case dict():
            return {key: _fill(inner, value) for key, inner in template.items()}
        case list():
            return [_fill(inner, value) for inner in template]
    return template


PLACES: dict[str, dict[str, Callable[[Any], Any]]] = {
    "body": {
        name: functools.partial(put, name) for name in ("params", "job", "json", *INPUTS, *ROUTES)
    },
    **{
        kind: {name: functools.partial(_put_within, *place) for name, place in places.items()}
        for kind, places in _DATA["within"].items()
    },
}


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


KINDS: dict[str, list[Attack]] = {
    kind: list(read(kind))
    for kind in (
        *("numbers", "grammars", "texts", "structure", "work", "media"),
        *("keys", "templates", "names", "volume", "http"),
    )
}

# Files of the operator, and a caller's file of 18 MB that contains no prompts.
OPERATOR_FILES = (
    "secret-of-operator/.env",
    ".cache/token",
    "models/my-model/config.json",
    "inbox/.env",
)
LISTS_FILE = "inbox/lists.json"


def write_volume(root: Path) -> None:
    """Write the volume's files."""
    for name in (*OPERATOR_FILES, LISTS_FILE):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
    for name in OPERATOR_FILES:
        (root / name).write_text('{"prompt": "Hi", "response": "a"}\n')
    lists = '{"prompts": ["Hi"], "max_new_tokens": 1, "temperature": 0, "stop_sequences": ['
    (root / LISTS_FILE).write_text(lists + "[]," * 6_000_000 + "[]]}")
