"""The files of recorded requests: one for each client, with a line for each request.

A line has the keys of a body that differ from those of the previous body of the same path: their
values (``set``) or, for a list, the number of equal items at its beginning and the further ones
(``from``).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "recorded"
# Longer texts are replaced, because they belong to the clients' vendors.
MAX_CHARACTERS = 48
# Keys whose texts are replaced, whatever their length.
TEXT_KEYS = {"description", "instructions"}
# Keys whose texts are names, patterns, or come from the script of the recording.
KEPT_KEYS = {"name", "pattern", "enum", "const", "$ref", "$schema", "arguments", "prompt"}
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32,64}")


@dataclass(frozen=True)
class Request:
    """A request: its path, which may have a query, and its body."""

    path: str
    body: dict[str, Any]


def shorten(value: Any, replaced: Mapping[str, str], key: str = "") -> Any:
    """Return a body with the same keys, types and numbers of items, without its long texts.

    ``replaced`` has the parts of texts to replace, such as the paths of this machine.
    """
    match value:
        case dict():
            return {
                _replace(name, replaced): shorten(inner, replaced, name)
                for name, inner in value.items()
            }
        case list():
            return [shorten(inner, replaced, key) for inner in value]
        case str() if key in TEXT_KEYS or (len(value) > MAX_CHARACTERS and key not in KEPT_KEYS):
            return f"A text of {len(value)} characters."
        case str():
            return _replace(value, replaced)
    return value


def _replace(text: str, replaced: Mapping[str, str]) -> str:
    for part, replacement in replaced.items():
        text = text.replace(part, replacement)
    return UUID.sub("00000000-0000-4000-8000-000000000000", text)


def encode(requests: Iterable[Request]) -> Iterator[str]:
    """Yield the lines of a file."""
    bodies: dict[str, dict[str, Any]] = {}
    for request in requests:
        before = bodies.get(request.path, {})
        line: dict[str, Any] = {"path": request.path, "set": {}, "from": {}}
        for key, value in request.body.items():
            if key not in before:
                line["set"][key] = value
            elif value != before[key]:
                equal = _count_equal_items(value, before[key])
                line["from" if equal else "set"][key] = [equal, value[equal:]] if equal else value
        line["remove"] = [key for key in before if key not in request.body]
        yield json.dumps({name: part for name, part in line.items() if part})
        bodies[request.path] = request.body


def _count_equal_items(value: Any, before: Any) -> int:
    """Return the number of items at the beginning of two lists that are equal."""
    if not (isinstance(value, list) and isinstance(before, list)):
        return 0
    pairs = enumerate(zip(value, before, strict=False))
    shorter = min(len(value), len(before))
    return next((number for number, (one, other) in pairs if one != other), shorter)


def decode(lines: Iterable[str]) -> Iterator[Request]:
    """Yield the requests of a file's lines."""
    bodies: dict[str, dict[str, Any]] = {}
    for line in map(json.loads, lines):
        before = bodies.get(line["path"], {})
        body = {key: value for key, value in before.items() if key not in line.get("remove", ())}
        body |= line.get("set", {})
        for key, (equal, items) in line.get("from", {}).items():
            body[key] = before[key][:equal] + items
        bodies[line["path"]] = body
        yield Request(line["path"], body)


def read_recorded() -> dict[str, list[Request]]:
    """Return the recorded requests of all clients, by the client's name."""
    files = sorted(FOLDER.glob("*.jsonl"))
    return {file.stem: list(decode(file.read_text().splitlines())) for file in files}


def read_last_recorded() -> Iterator[tuple[str, Request]]:
    """Yield the recorded requests that no later one of the same session continues, with names."""
    for client, requests in read_recorded().items():
        lines = enumerate(zip(requests, [*requests[1:], Request("", {})], strict=True))
        for number, (request, following) in lines:
            if not (request.path == following.path and _is_continued(request.body, following.body)):
                yield f"{client} {number}", request


def _is_continued(body: dict[str, Any], following: dict[str, Any]) -> bool:
    history, later = (one.get("messages") or one.get("input") for one in (body, following))
    if not (isinstance(history, list) and isinstance(later, list)):
        return False
    return len(later) > len(history) and later[: len(history) - 1] == history[:-1]
