"""Places of a hostile value in a request: by the kind of value, then by the name of the place."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from support.tables.attacks.row import Http

Body = dict[str, Any]

_DATA = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
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
    "body": {name: partial(put, name) for name in ("params", "job", "json", *INPUTS, *ROUTES)},
    **{
        kind: {name: partial(_put_within, *place) for name, place in places.items()}
        for kind, places in _DATA["within"].items()
    },
}
