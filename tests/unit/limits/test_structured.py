"""Sizes of structured outputs: on every route, in all places that hold one."""

import json
from typing import Any

import pytest

from worker.errors import InvalidInput
from worker.limits.structured import check_structured

FOREIGN = {"$ref": "file:///etc/passwd"}
LEADS = "a $ref leads to a place in the same schema: it begins with #"
EMPTY_LINES = "\n" * 5_001
TOO_LONG = "a" * 10_001


def nested(value: Any, times: int, key: str = "items", **beside: Any) -> Any:
    for _ in range(times):
        value = {key: value, **beside}
    return value


def properties(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(count)}}


# Where a request has a constraint, with the place that the refusal names.
PLACES = [
    ({"structured_outputs": {"regex": TOO_LONG}}, "structured_outputs.regex"),
    ({"guided_regex": TOO_LONG}, "guided_regex"),
    ({"guided_decoding": {"guided_regex": TOO_LONG}}, "guided_decoding.guided_regex"),
    ({"guided_options_request": {"regex": TOO_LONG}}, "guided_options_request.regex"),
    ({"guided_json": FOREIGN}, "guided_json"),
    ({"structured_outputs": {"json": json.dumps(FOREIGN)}}, "structured_outputs.json"),
    ({"structured_outputs": {"grammar": EMPTY_LINES}}, "structured_outputs.grammar"),
    ({"response_format": {"json_schema": {"schema": FOREIGN}}}, "response_format"),
    ({"response_format": {"structures": [{"schema": FOREIGN}]}}, "response_format"),
    ({"response_format": {"format": {"type": "grammar", "grammar": EMPTY_LINES}}}, None),
    ({"text": {"format": {"schema": {"patternProperties": {"a": FOREIGN}}}}}, "text"),
    ({"output_config": {"format": {"schema": {"allOf": [FOREIGN]}}}}, "output_config"),
    ({"tools": [{}, {"function": {"parameters": {"items": FOREIGN}}}]}, "tools.1"),
    ({"tools": [{"input_schema": {"properties": {"enum": FOREIGN}}}]}, "tools.0"),
    ({"tools": [{"format": {"definition": EMPTY_LINES}}]}, "tools.0"),
    ({"structured_outputs": {"structural_tag": json.dumps({"format": FOREIGN})}}, None),
    ({"a_key_of_the_future": {"$defs": {"a": {"not": FOREIGN}}}}, "a_key_of_the_future"),
]


@pytest.mark.parametrize(("body", "place"), PLACES)
def test_a_constraint_is_measured_wherever_it_stands(
    body: dict[str, Any], place: str | None
) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_structured(body)
    assert place is None or refused.value.message.startswith(f"{place}: ")
    assert refused.value.param == next(reversed(body))


TOO_MUCH = [
    ({"regex": "a" * 10_001}, "at most 10,000 characters"),
    ({"grammar": 'root ::= "' + "a" * 50_000 + '"'}, "at most 50,000 characters"),
    ({"json": {"enum": ["a" * 64_001]}}, "at most 64,000 characters"),
    ({"json": properties(1_001)}, "at most 1,000 properties; it has 1,001"),
    ({"json": {"enum": list(range(1_001))}}, "at most 1,000 values; it has 1,001"),
    ({"json": FOREIGN}, LEADS),
    ({"json": {"items": {"$ref": "http://127.0.0.1/x"}}}, LEADS),
    ({"json": " " + json.dumps(FOREIGN)}, LEADS),
    ({"json": {"x": [0] * 16_001}}, "at most 64,000 characters"),
    ({"choice": ["a"] * 1_001}, "at most 1,000 choices; it has 1,001"),
    ({"json": nested({}, 65)}, "nested too deeply: at most 64 levels"),
    ({"json": json.dumps(nested({}, 70))}, "nested too deeply"),
    ({"json": "[" * 60_000}, "nested too deeply"),
    ({"json": {"description": "a" * 64_001}}, "at most 64,000 characters"),
    ({"json": {"a" * 64_001: 1}}, "at most 64,000 characters"),
    ({"json": {"anyOf": [{}] * 300, "allOf": [{}] * 201}}, "at most 500 branches"),
    ({"json": {"type": "array", "minItems": 10**9}}, "minItems is 1e+09; at most 1,000,000"),
    ({"json": {"type": "string", "maxLength": 1_000_001}}, "maxLength is 1e+06; at most 1,000,000"),
    ({"grammar": "\n" * 5_001 + "a ::= b"}, "at most 5,000 lines"),
]


@pytest.mark.parametrize(("structured", "message"), TOO_MUCH)
def test_the_refusal_names_the_limit_and_the_size(structured: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_structured({"structured_outputs": structured}, "sampling_params")
    assert message in refused.value.message
    assert refused.value.message.startswith("sampling_params.structured_outputs.")


BOMB = {"pattern": "((a{0,100}){0,100}){0,100}"}
LEGITIMATE = [
    {"regex": "a" * 10_000},
    {"choice": ["a"] * 1_000},
    # Whether it takes long, or never ends, is tried out.
    {"grammar": "root ::= root"},
    {"json": BOMB},
    {"json": {**properties(100), "additionalProperties": False, "required": ["p1", "p9"]}},
    {"json": {"properties": {"$ref": {"type": "string"}, "maxItems": {"type": "integer"}}}},
    {"json": {"default": {"maxItems": 10**9}, "enum": [{"a": FOREIGN}]}},
    {"json": {"type": "string", "maxLength": 1_000_000}},
    {"json": nested({}, 64)},
    # As text it is counted once.
    {"json": json.dumps({"enum": [f"{n:050}" for n in range(900)]})},
    {"json_object": True},
]


@pytest.mark.parametrize("structured", LEGITIMATE)
def test_what_callers_use_is_accepted(structured: dict[str, Any]) -> None:
    check_structured({"structured_outputs": structured})


def test_content_is_no_constraint() -> None:
    body = {"messages": [FOREIGN] * 300, "input": [nested({}, 500)], "metadata": FOREIGN}
    check_structured({**body, "temperature": 0, "stop": ["a"] * 2_000, "user": "a" * 100_000})
