"""Limits of structured outputs, on every route and under every key."""

import json
from typing import Any

import pytest
from pydantic import BaseModel, Field

from worker.errors import InvalidInput
from worker.limits.structured import StructuredOutputLimits

BOMB = "((a{0,100}){0,100}){0,100}"
NESTING_MESSAGE = "at most 2 counted repetitions inside each other; it has 3 or more"
PATTERN = {"type": "string", "pattern": BOMB}


def nest(value: Any, times: int, key: str = "items", **siblings: Any) -> Any:
    for _ in range(times):
        value = {key: value, **siblings}
    return value


def properties(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(count)}}


# Bodies with a constraint, and the key that the refusal names.
BODIES = [
    ({"structured_outputs": {"regex": BOMB}}, "structured_outputs.regex"),
    ({"guided_regex": BOMB}, "guided_regex"),
    ({"guided_decoding": {"guided_regex": BOMB}}, "guided_decoding.guided_regex"),
    ({"guided_options_request": {"regex": BOMB}}, "guided_options_request.regex"),
    ({"guided_json": {}, "guided_whitespace_pattern": BOMB}, "guided_whitespace_pattern"),
    ({"structured_outputs": {"json": json.dumps(PATTERN)}}, "structured_outputs.json"),
    ({"response_format": {"json_schema": {"schema": PATTERN}}}, "response_format"),
    ({"response_format": {"structures": [{"schema": PATTERN}]}}, "response_format"),
    ({"response_format": {"format": {"type": "regex", "pattern": BOMB}}}, "response_format"),
    ({"text": {"format": {"schema": {"patternProperties": {BOMB: {}}}}}}, "text"),
    ({"output_config": {"format": {"schema": {"allOf": [PATTERN]}}}}, "output_config"),
    ({"tools": [{}, {"function": {"parameters": {"items": PATTERN}}}]}, "tools.1"),
    ({"tools": [{"input_schema": {"properties": {"pattern": PATTERN}}}]}, "tools.0"),
    ({"tools": [{"format": {"definition": f"root ::= {BOMB}"}}]}, "tools.0"),
    ({"structured_outputs": {"structural_tag": json.dumps({"format": PATTERN})}}, None),
    ({"a_key_of_the_future": {"$defs": {"a": {"not": PATTERN}}}}, "a_key_of_the_future"),
]


@pytest.mark.parametrize(("body", "place"), BODIES)
def test_a_constraint_is_found_under_every_key(body: dict[str, Any], place: str | None) -> None:
    with pytest.raises(InvalidInput) as caught:
        StructuredOutputLimits().check_constraints(body)
    assert caught.value.message.endswith(NESTING_MESSAGE)
    assert place is None or caught.value.message.startswith(f"{place}: ")
    assert caught.value.param == next(reversed(body))


INNER = {"type": "regex", "pattern": "a{200}"}
TOO_MUCH = [
    ({"regex": "a" * 10_001}, "at most 10,000 characters"),
    ({"grammar": 'root ::= "' + "a" * 50_000 + '"'}, "at most 50,000 characters"),
    ({"json": {"enum": ["a" * 64_001]}}, "at most 64,000 characters"),
    ({"json": properties(1_001)}, "at most 1,000 properties; it has 1,001"),
    ({"json": {"enum": list(range(1_001))}}, "at most 1,000 values; it has 1,001"),
    ({"json": {"$ref": "file:///etc/passwd"}}, "it begins with #"),
    ({"json": {"items": {"$ref": "http://127.0.0.1/x"}}}, "it begins with #"),
    ({"json": {"x": [0] * 16_001}}, "at most 64,000 characters"),
    ({"choice": ["a"] * 1_001}, "at most 1,000 choices; it has 1,001"),
    ({"json": nest({}, 65)}, "nested too deeply: at most 64 levels"),
    ({"json": json.dumps(nest({}, 70))}, "nested too deeply"),
    ({"json": "[" * 60_000}, "nested too deeply"),
    ({"json": {"description": "a" * 64_001}}, "at most 64,000 characters"),
    ({"json": {"a" * 64_001: 1}}, "at most 64,000 characters"),
    ({"json": " " + json.dumps(PATTERN)}, NESTING_MESSAGE),
    ({"json": [{"pattern": "a"}] * 201}, "at most 200 regular expressions; it has 201"),
    ({"json": {"pattern": "a" * 10_001}}, "at most 10,000 characters of a regular expression"),
    ({"json": {"anyOf": [{}] * 501}}, "at most 500 branches"),
    ({"json": {"type": "array", "minItems": 10**9}}, "minItems is 1e+09; at most 1,000,000"),
    ({"json": {"type": "string", "maxLength": 1_000_001}}, "maxLength is 1e+06; at most 1,000,000"),
    ({"grammar": "a ::= b\n" * 1_001}, "at most 1,000 rules; it has 1,001"),
    ({"grammar": "a ::= b" + "|b" * 5_001}, "at most 5,000 alternatives"),
    ({"grammar": "\n" * 5_001 + "a ::= b"}, "at most 5,000 lines"),
    ({"regex": "(a{0,200}){0,200}"}, "it has 40,000"),
    ({"regex": "a{2}{2}{2}"}, NESTING_MESSAGE),
    ({"regex": "a{99999999999999999999}"}, "at most 10,000 repetitions"),
    ({"regex": f"a{{{'9' * 5_000}}}"}, "at most 10,000 repetitions"),
    ({"regex": "((((a*)*)+)*)b"}, "at most 3 repetitions inside each other; it has 4"),
    ({"grammar": 'root ::= ((("a"|"b"){0,9}){0,9}){0,9}'}, NESTING_MESSAGE),
    ({"grammar": 'root ::= a{9}\na ::= b{9}\nb ::= "c"{9}'}, NESTING_MESSAGE),
    ({"grammar": 'root ::= a{200}\na ::= b\nb ::= "c"{200}'}, "it has 40,000"),
    ({"grammar": 'root ::= "x" | "(" root{2} ")"'}, NESTING_MESSAGE),
    ({"grammar": "start: a~1..9\na: b~9\nb: [/x{9}/]"}, NESTING_MESSAGE),
    ({"grammar": 'start: [(("a"~9)~9)~9]'}, NESTING_MESSAGE),
    ({"grammar": 'start: [[["a"~9]~9]~9]'}, NESTING_MESSAGE),
    # A comment doesn't turn a Lark grammar into EBNF.
    ({"grammar": 'start: [(("a"~9)~9)~9] // a ::= b'}, NESTING_MESSAGE),
    ({"grammar": "start: (/x{200}/)~200"}, "it has 40,000"),
    # Of several paths to a rule, the path with the most repetitions counts.
    ({"grammar": 'root ::= a{2} | a{5000}\na ::= "b"{3}'}, "it has 15,000"),
    ({"grammar": 'root ::= a{2} | b{200}\nb ::= a\na ::= "c"{60}'}, "it has 12,000"),
    (
        {"structural_tag": nest({"type": "regex", "pattern": "a"}, 4, "content", type="star")},
        "at most 3 repetitions inside each other; it has 4",
    ),
    (
        {"structural_tag": {"type": "repeat", "max": 200, "content": {"elements": [INNER]}}},
        "it has 40,000",
    ),
]


@pytest.mark.parametrize(("structured", "message"), TOO_MUCH)
def test_the_refusal_names_the_limit_and_the_size(structured: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        StructuredOutputLimits().check_constraints(
            {"structured_outputs": structured}, "sampling_params"
        )
    assert message in caught.value.message
    assert caught.value.message.startswith("sampling_params.structured_outputs.")


class Person(BaseModel):
    name: str = Field(pattern=r"^[A-Z][a-z]{1,30}( [A-Z][a-z]{1,30}){0,4}$")
    pattern: str = "any"
    properties: dict[str, int] = Field(default_factory=dict)
    codes: list[str] = Field(max_length=10)
    friends: "list[Person]" = Field(default_factory=list, max_length=10)


JSON = """
root ::= object
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\\"" ([^"\\\\] | "\\\\" (["\\\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws
ws ::= [ \\t\\n]{0,20}
"""
SQL = """
start: select
select: "SELECT" columns "FROM" NAME [where]
columns: NAME ("," NAME)*
where: "WHERE" NAME "=" NUMBER~1..3
NAME: /[a-z]{1,20}/
NUMBER: /[0-9]+/
"""
LEGITIMATE = [
    {"regex": "a" * 10_000},
    {"choice": ["a"] * 1_000},
    {"grammar": 'root ::= "a" root | "b"'},
    # This grammar never ends, but the compiler reports it immediately.
    {"grammar": "root ::= root"},
    {"json": Person.model_json_schema()},
    {"json": {**properties(100), "additionalProperties": False, "required": ["p1", "p9"]}},
    {"json": {"properties": {"pattern": {"type": "string"}, "enum": {"type": "array"}}}},
    {"json": {"default": {"pattern": BOMB}, "examples": [{"pattern": BOMB}]}},
    {"json": {"default": {"maxItems": 10**9}, "enum": [{"pattern": BOMB}]}},
    {"json": {"type": "string", "maxLength": 1_000_000}},
    {"json": nest({}, 64)},
    # A schema in a string is counted once.
    {"json": json.dumps({"enum": [f"{n:050}" for n in range(900)]})},
    {"regex": "(a{0,100}){0,100}"},
    {"json": {"items": {"items": {"maxItems": 100, "maxLength": 500}, "maxItems": 100}}},
    {"regex": r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?(Z|[+-]\d{2}:\d{2})"},
    {"regex": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
    {"regex": r"[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]{1,255}\.[a-z]{2,63}"},
    {"regex": r"((25[0-5]|(2[0-4]|1\d|[1-9]|)\d)\.?\b){4}"},
    {"regex": r"([^\"\\\[\](){}]{1,99}, ){0,99}"},
    {"grammar": JSON},
    {"grammar": SQL},
    {"grammar": 'root ::= select_statement\nselect_statement ::= "SELECT " ("a" | "b")'},
    {"json_object": True},
]


@pytest.mark.parametrize("structured", LEGITIMATE)
def test_common_structured_outputs_are_accepted(structured: dict[str, Any]) -> None:
    StructuredOutputLimits().check_constraints({"structured_outputs": structured})


def test_content_is_not_checked_as_a_constraint() -> None:
    body: dict[str, Any] = {
        "messages": [PATTERN] * 300,
        "input": [nest({}, 500)],
        "metadata": PATTERN,
    }
    body |= {"temperature": 0, "stop": ["a"] * 2_000, "user": "a" * 100_000}
    StructuredOutputLimits().check_constraints(body, text_keys=("messages", "input"))
    with pytest.raises(InvalidInput, match="messages"):
        StructuredOutputLimits().check_constraints(body, text_keys=("input",))


def test_an_operator_can_raise_the_limits() -> None:
    StructuredOutputLimits(max_repetitions=10**9, max_nesting=5).check_constraints(
        {"guided_regex": BOMB}
    )
