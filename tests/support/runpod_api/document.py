"""Validates requests and responses against the platform's published OpenAPI document."""

import re
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

# Only the types of the document at github.com/runpod/docs, api-reference-v2/openapi.json, without
# headers of responses.
DOCUMENT: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
_NAME = "urn:runpod:v2"
_REGISTRY: Registry[Any] = Registry().with_resource(_NAME, DRAFT202012.create_resource(DOCUMENT))
_PARAMETER = re.compile(r"\{(\w+)\}")


PATHS = {
    path: re.compile(_PARAMETER.sub(r"(?P<\1>[^/]+)", path) + "$") for path in DOCUMENT["paths"]
}


def operation(verb: str, path: str) -> dict[str, Any] | None:
    """Return the document's entry for a verb and a path; None if they are unknown."""
    for written, pattern in PATHS.items():
        if pattern.match(path):
            operation: dict[str, Any] | None = DOCUMENT["paths"][written].get(verb.lower())
            return operation
    return None


def schema_errors(schema: dict[str, Any], value: object) -> list[str]:
    """Return the errors of a value, in the platform's format."""
    validator = Draft202012Validator(_absolute(schema), registry=_REGISTRY)
    return sorted(f"{error.json_path}: {error.message}" for error in validator.iter_errors(value))


def body_errors(operation: dict[str, Any], body: object) -> list[str]:
    request_body = operation.get("requestBody")
    if request_body is None:
        return [] if body is None else ["$: no body is expected"]
    return schema_errors(request_body["content"]["application/json"]["schema"], body)


def query_errors(operation: dict[str, Any], query: dict[str, str]) -> list[str]:
    """Return the errors of a request's query parameters."""
    parameters = [_resolve(parameter) for parameter in operation.get("parameters", ())]
    known = {
        parameter["name"]: parameter["schema"]
        for parameter in parameters
        if parameter["in"] == "query"
    }
    wrong = [f"query: {name} is not known" for name in query.keys() - known.keys()]
    for name in query.keys() & known.keys():
        whole = _resolve(known[name]).get("type") == "integer"
        wrong += schema_errors(known[name], int(query[name]) if whole else query[name])
    return wrong


def response_errors(operation: dict[str, Any], status: int, answer: object) -> list[str]:
    """Return the errors of a response made by the tests' platform."""
    responses = operation["responses"]
    expected = _resolve(responses.get(str(status), responses["default"]))
    if "content" not in expected:
        return [] if answer is None else ["$: no body is expected"]
    (kind,) = expected["content"].values()
    return schema_errors(kind["schema"], answer)


def _resolve(value: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in value:
        return value
    target: Any = DOCUMENT
    for part in value["$ref"].removeprefix("#/").split("/"):
        target = target[part]
    return _resolve(target)


def _absolute(value: Any) -> Any:
    """Rewrite references so that they point to the document from anywhere."""
    if isinstance(value, dict):
        return {
            key: _NAME + inner if key == "$ref" else _absolute(inner)
            for key, inner in value.items()
        }
    return [_absolute(item) for item in value] if isinstance(value, list) else value
