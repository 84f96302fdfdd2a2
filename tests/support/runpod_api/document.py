"""Holds requests and answers to the platform's published OpenAPI document."""

import re
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

# Its types alone: it was published at github.com/runpod/docs, api-reference-v2/openapi.json.
# Headers of answers are left out.
DOCUMENT: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
_NAME = "urn:runpod:v2"
_REGISTRY: Registry[Any] = Registry().with_resource(_NAME, DRAFT202012.create_resource(DOCUMENT))
_PARAMETER = re.compile(r"\{(\w+)\}")


PATHS = {
    path: re.compile(_PARAMETER.sub(r"(?P<\1>[^/]+)", path) + "$") for path in DOCUMENT["paths"]
}


def operation(verb: str, path: str) -> dict[str, Any] | None:
    """Return what the document says of a verb and a path."""
    for written, pattern in PATHS.items():
        if pattern.match(path):
            found: dict[str, Any] | None = DOCUMENT["paths"][written].get(verb.lower())
            return found
    return None


def wrong_with(schema: dict[str, Any], value: object) -> list[str]:
    """Return what is wrong with a value, in the platform's manner."""
    validator = Draft202012Validator(_absolute(schema), registry=_REGISTRY)
    return sorted(f"{error.json_path}: {error.message}" for error in validator.iter_errors(value))


def wrong_with_body(found: dict[str, Any], body: object) -> list[str]:
    asked = found.get("requestBody")
    if asked is None:
        return [] if body is None else ["$: no body is expected"]
    return wrong_with(asked["content"]["application/json"]["schema"], body)


def wrong_with_query(found: dict[str, Any], query: dict[str, str]) -> list[str]:
    """Return what is wrong with the parameters behind a path."""
    listed = [_resolved(one) for one in found.get("parameters", ())]
    known = {one["name"]: one["schema"] for one in listed if one["in"] == "query"}
    wrong = [f"query: {name} is not known" for name in query.keys() - known.keys()]
    for name in query.keys() & known.keys():
        whole = _resolved(known[name]).get("type") == "integer"
        wrong += wrong_with(known[name], int(query[name]) if whole else query[name])
    return wrong


def wrong_with_answer(found: dict[str, Any], status: int, answer: object) -> list[str]:
    """Return what is wrong with an answer, which tests give: it must be one of the platform's."""
    given = _resolved(found["responses"].get(str(status)) or found["responses"]["default"])
    if "content" not in given:
        return [] if answer is None else ["$: no body is expected"]
    (kind,) = given["content"].values()
    return wrong_with(kind["schema"], answer)


def _resolved(value: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in value:
        return value
    found: Any = DOCUMENT
    for part in value["$ref"].removeprefix("#/").split("/"):
        found = found[part]
    return _resolved(found)


def _absolute(value: Any) -> Any:
    """Write references so that they lead into the document from anywhere."""
    if isinstance(value, dict):
        return {
            key: _NAME + inner if key == "$ref" else _absolute(inner)
            for key, inner in value.items()
        }
    return [_absolute(one) for one in value] if isinstance(value, list) else value
