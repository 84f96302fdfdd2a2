"""What answers must match: expressions, grammars and schemas that are slow to compile or match."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from support.tables.attacks.row import (
    CANARY,
    EITHER,
    REFUSED,
    Attack,
    Body,
    Expected,
    anthropic,
    chat,
    completion,
    engine,
    params,
    raw,
    responses,
)

# Tokens that must be generated: each takes the matcher longer than the one before.
TOKENS = 18
LONG = {"min_tokens": TOKENS, "max_tokens": TOKENS}

THREE = "((a{0,100}){0,100}){0,100}"
FIVE = "(((((a{0,9}){0,9}){0,9}){0,9}){0,9}){0,9}"
UNBOUNDED = "((a{5,}){5,}){5,}"
GRAMMAR = 'root ::= ((("a"|"b"){0,1000}){0,1000}){0,1000}'
LADDER = 'root ::= b{0,1000}\nb ::= c{0,1000}\nc ::= d{0,1000}\nd ::= "a" | "b"'


def tagged(schema: Any) -> Body:
    """Return a format with a schema between tags."""
    structures = [{"begin": "<a>", "schema": schema, "end": "</a>"}]
    return {"type": "structural_tag", "structures": structures, "triggers": ["<a>"]}


def as_format(schema: Any) -> Body:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def tool(schema: Any, **keys: Any) -> Body:
    return {"type": "function", "function": {"name": "f", "parameters": schema, **keys}}


def flat_tool(schema: Any) -> Body:
    return {"type": "function", "name": "f", "parameters": schema, "strict": True}


# How a request carries what its answer must match: by the kind, then by the place.
REGEX: dict[str, Callable[[Any], Body]] = {
    "raw": lambda regex: params(guided_regex=regex, **LONG),
    "raw structured_outputs": lambda regex: params(structured_outputs={"regex": regex}, **LONG),
    "raw guided_decoding": lambda regex: params(guided_decoding={"regex": regex}, **LONG),
    "beside sampling_params": lambda regex: raw(guided_regex=regex, sampling_params=LONG),
    "list": lambda regex: {
        "prompts": ["a", "b"],
        "sampling_params": [LONG, {"guided_regex": regex, **LONG}],
    },
    "llm_engine": lambda regex: engine(guided_regex=regex, max_new_tokens=TOKENS),
    "chat": lambda regex: chat(guided_regex=regex, **LONG),
    "chat structured_outputs": lambda regex: chat(structured_outputs={"regex": regex}, **LONG),
    "chat stream": lambda regex: chat(structured_outputs={"regex": regex}, stream=True, **LONG),
    "completions": lambda regex: completion(structured_outputs={"regex": regex}, **LONG),
    "responses": lambda regex: responses(
        structured_outputs={"regex": regex}, max_output_tokens=TOKENS
    ),
    "pattern in response_format": lambda regex: chat(
        response_format=as_format({"type": "string", "pattern": regex}), **LONG
    ),
}
GRAMMARS: dict[str, Callable[[Any], Body]] = {
    "raw": lambda grammar: params(guided_grammar=grammar, **LONG),
    "beside sampling_params": lambda grammar: raw(guided_grammar=grammar, sampling_params=LONG),
    "llm_engine": lambda grammar: engine(guided_grammar=grammar, max_new_tokens=TOKENS),
    "chat": lambda grammar: chat(structured_outputs={"grammar": grammar}, **LONG),
    "completions": lambda grammar: completion(structured_outputs={"grammar": grammar}, **LONG),
    "responses": lambda grammar: responses(structured_outputs={"grammar": grammar}),
}
SCHEMAS: dict[str, Callable[[Any], Body]] = {
    "raw": lambda schema: params(guided_json=schema, **LONG),
    "raw structured_outputs": lambda schema: params(structured_outputs={"json": schema}, **LONG),
    "llm_engine": lambda schema: engine(guided_json=schema),
    "chat response_format": lambda schema: chat(response_format=as_format(schema), **LONG),
    "completions response_format": lambda schema: completion(response_format=as_format(schema)),
    "chat structured_outputs": lambda schema: chat(structured_outputs={"json": schema}),
    "chat structural_tag": lambda schema: chat(response_format=tagged(schema)),
    "chat tool": lambda schema: chat(tools=[tool(schema)], tool_choice="required"),
    "chat strict tool": lambda schema: chat(
        tools=[tool(schema, strict=True)],
        tool_choice={"type": "function", "function": {"name": "f"}},
    ),
    "responses text.format": lambda schema: responses(
        text={"format": {"type": "json_schema", "name": "x", "schema": schema}}
    ),
    "responses structured_outputs": lambda schema: responses(structured_outputs={"json": schema}),
    "responses tool": lambda schema: responses(tools=[flat_tool(schema)], tool_choice="required"),
    "messages output_config": lambda schema: anthropic(
        output_config={"format": {"type": "json_schema", "schema": schema}}
    ),
    "messages tool": lambda schema: anthropic(
        tools=[{"name": "f", "input_schema": schema}], tool_choice={"type": "any"}
    ),
}

# Where OpenAI's and Anthropic's clients put a schema.
FORMATS = "chat response_format, responses text.format, messages output_config"
# Where the arguments of a function are one.
TOOLS = "chat tool, chat strict tool, responses tool, messages tool"


def spread(
    name: str,
    make: Callable[[], Any],
    places: dict[str, Callable[[Any], Body]],
    chosen: str = "",
    expected: Expected = REFUSED,
    **options: Any,
) -> list[Attack]:
    """Return a row for each place of a value, or for those that were chosen (``a, b``)."""
    names = chosen.split(", ") if chosen else list(places)
    return [
        Attack(f"{name}: {place}", partial(_placed, places[place], make), expected, **options)
        for place in names
    ]


def _placed(place: Callable[[Any], Body], make: Callable[[], Any]) -> Body:
    return place(make())


def properties(count: int) -> Body:
    names = [CANARY, *(f"property{number}" for number in range(count - 1))]
    return {"type": "object", "properties": {name: {"type": "integer"} for name in names}}


def enum(count: int) -> Body:
    return {"enum": [CANARY, *(f"value{number}" for number in range(count))]}


def deep(depth: int) -> Body:
    schema: Body = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def references(count: int) -> Body:
    """Return definitions of which each has the next one twice."""
    definitions: Body = {
        f"d{i}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{i + 1}"}] * 2}
        for i in range(count)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{count}": {"type": "null"}}}


def pattern(regex: str) -> Body:
    return {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": regex}},
        "required": ["a"],
    }


BOMBS = [
    *spread("three nested repetitions", lambda: THREE, REGEX, harmful=True),
    *spread(
        "six nested repetitions",
        lambda: FIVE,
        REGEX,
        "raw, chat structured_outputs, responses",
        harmful=True,
    ),
    *spread(
        "nested repetitions without end", lambda: UNBOUNDED, REGEX, "raw, chat, responses", EITHER
    ),
    *spread(
        "repetitions of groups without names",
        lambda: "(?:(?:(?:a|b){0,99}){0,99}){0,99}",
        REGEX,
        "raw, completions, llm_engine",
    ),
    *spread("nested stars", lambda: "((a*)*)*" + "b", REGEX, "raw, chat", EITHER),
    *spread(
        "nested plus in a choice",
        lambda: "(x+x+)+y|" + "(a|a)*" * 20,
        REGEX,
        "raw, responses",
        EITHER,
    ),
    *spread(
        "one repetition of 10**9",
        lambda: "a{1000000000}",
        REGEX,
        "raw, chat, responses, pattern in response_format",
    ),
    *spread(
        "two repetitions of 9,999", lambda: "(a{0,9999}){0,9999}", REGEX, "raw, chat stream, list"
    ),
    *spread(
        "a class repeated thrice",
        lambda: "(([a-z]{1,100}){1,100}){1,100}",
        REGEX,
        "raw, beside sampling_params",
    ),
    *spread(
        "500 repetitions in a row",
        lambda: "(a|b){0,500}" * 500,
        REGEX,
        "raw, chat, completions, responses",
    ),
    *spread("repetitions in a branch", lambda: f"x|{THREE}|y", REGEX, "raw, raw guided_decoding"),
    *spread(
        "repetitions in a class's shadow", lambda: "[(]((a{0,99}){0,99}){0,99}", REGEX, "raw, chat"
    ),
    *spread(
        "repetitions behind an escaped brace",
        lambda: r"\{((a{0,99}){0,99}){0,99}\}",
        REGEX,
        "raw, responses",
    ),
    *spread(
        "counted in other digits",
        lambda: "((a{0,٩٩}){0,٩٩}){0,٩٩}",
        REGEX,
        "raw, responses",
        EITHER,
    ),
    *spread(
        "a lookahead", lambda: "(?=a)(?!b)(?<=c)a{0,10}", REGEX, "raw, chat, responses", EITHER
    ),
    *spread("a back reference", lambda: r"(a{1,50})\1{1,50}", REGEX, "raw, chat", EITHER),
    *spread(
        "an expression of 200 KB",
        lambda: "a?" * 100_000,
        REGEX,
        "raw, chat, chat structured_outputs, responses, pattern in response_format",
        harmful=True,
    ),
    *spread(
        "5,000 brackets",
        lambda: "(" * 5000 + "a" + ")" * 5000,
        REGEX,
        "raw, chat, responses",
        EITHER,
    ),
    *spread(
        "an open bracket", lambda: "(a", REGEX, "raw, chat, completions, responses, llm_engine"
    ),
    *spread("an expression with NUL", lambda: "a\x00b{2,3}", REGEX, "raw, chat", EITHER),
    *spread("an expression that is a number", lambda: 5, REGEX, "raw, chat, responses, llm_engine"),
]

RULES = [
    *spread("nested repetitions", lambda: GRAMMAR, GRAMMARS, harmful=True),
    *spread(
        "nested repetitions by rules",
        lambda: LADDER,
        GRAMMARS,
        "raw, chat, responses",
        EITHER,
        harmful=True,
    ),
    *spread(
        "50 KB of empty lines",
        lambda: "\n" * 49_990 + "x",
        GRAMMARS,
        "raw, chat, completions, llm_engine",
        harmful=True,
    ),
    *spread("50 KB of spaces", lambda: " " * 49_990 + "x", GRAMMARS, "raw, chat", EITHER),
    *spread(
        "16 KB of empty lines, then a rule",
        lambda: "\n" * 16_000 + 'root ::= "a"',
        GRAMMARS,
        "raw, chat",
        EITHER,
        harmful=True,
    ),
    *spread("a rule that is only itself", lambda: "root ::= root", GRAMMARS, harmful=True),
    *spread(
        "rules that are only each other",
        lambda: "root ::= a\na ::= b\nb ::= a",
        GRAMMARS,
        harmful=True,
    ),
    *spread(
        "left recursion behind an empty word",
        lambda: 'root ::= "" root',
        GRAMMARS,
        "raw, responses",
        EITHER,
    ),
    *spread(
        "Lark: a rule that is only itself",
        lambda: "start: start",
        GRAMMARS,
        "raw, chat, responses",
        EITHER,
    ),
    *spread(
        "a rule that is missing",
        lambda: "root ::= missing",
        GRAMMARS,
        "raw, chat, responses, completions",
    ),
    *spread("no grammar at all", lambda: "%%%", GRAMMARS, "raw, chat, responses, llm_engine"),
    *spread(
        "200 KB of rules",
        lambda: "\n".join(f'r{i} ::= "a"' for i in range(14_000)),
        GRAMMARS,
        "raw, chat, responses, llm_engine",
    ),
    *spread(
        "3,000 brackets",
        lambda: "root ::= " + "(" * 3000 + '"a"' + ")" * 3000,
        GRAMMARS,
        "raw, chat, responses",
        EITHER,
    ),
    *spread(
        "1,000 choices of each other",
        lambda: (
            "root ::= "
            + " | ".join(f"r{i}" for i in range(1000))
            + "\n"
            + "\n".join(f'r{i} ::= "a" r{(i + 1) % 1000}' for i in range(1000))
        ),
        GRAMMARS,
        "raw, chat, responses",
        EITHER,
    ),
    *spread(
        "a doubling tower of rules",
        lambda: (
            "root ::= r0\n"
            + "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(40))
            + '\nr40 ::= "a" | ""'
        ),
        GRAMMARS,
        "raw, chat",
        EITHER,
    ),
]

SCHEMA = [
    *spread(
        "6,000 properties",
        lambda: properties(6_000),
        SCHEMAS,
        "raw, chat structural_tag, completions response_format, " + FORMATS,
        harmful=True,
    ),
    *spread(
        "3,000 properties",
        lambda: properties(3_000),
        SCHEMAS,
        TOOLS + ", llm_engine, responses structured_outputs, chat structured_outputs",
        EITHER,
    ),
    *spread(
        "a schema of 100 KB",
        lambda: {"type": "string", "description": "d" * 100_000},
        SCHEMAS,
        "chat response_format, responses text.format, messages output_config",
        harmful=True,
    ),
    *spread(
        "5,000 choices",
        lambda: enum(5_000),
        SCHEMAS,
        "raw, chat response_format, responses text.format, messages output_config, llm_engine",
    ),
    *spread(
        "60 levels",
        lambda: deep(60),
        SCHEMAS,
        "raw, chat response_format, responses text.format, messages output_config",
        EITHER,
    ),
    *spread(
        "300 levels",
        lambda: deep(300),
        SCHEMAS,
        "raw, chat response_format, responses text.format",
        EITHER,
    ),
    *spread(
        "a schema that is only itself",
        lambda: {"$ref": "#"},
        SCHEMAS,
        "raw, llm_engine, completions response_format, " + FORMATS,
        harmful=True,
    ),
    *spread(
        "definitions that are only each other",
        lambda: {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        },
        SCHEMAS,
        "raw, chat response_format, responses text.format",
    ),
    *spread(
        "doubling references",
        lambda: references(30),
        SCHEMAS,
        "raw, chat response_format, responses text.format",
        EITHER,
    ),
    *spread(
        "allOf that one library can't read",
        lambda: {"allOf": [{"type": "string"}, {"enum": ["yes", "no"]}]},
        SCHEMAS,
        "raw, chat response_format",
        EITHER,
        harmful=True,
    ),
    *spread("nested repetitions in a pattern", lambda: pattern(THREE), SCHEMAS, harmful=True),
    *spread(
        "nested repetitions in patternProperties",
        lambda: {"type": "object", "patternProperties": {THREE: {"type": "integer"}}},
        SCHEMAS,
        "raw, chat response_format, responses text.format, chat strict tool",
    ),
    *spread(
        "nested repetitions in propertyNames",
        lambda: {"type": "object", "propertyNames": {"pattern": THREE}},
        SCHEMAS,
        "raw, chat response_format",
        EITHER,
    ),
    *spread(
        "a pattern in a definition",
        lambda: {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"anyOf": [{"type": "null"}, pattern(THREE)]}},
        },
        SCHEMAS,
        "raw, chat response_format, chat tool, responses text.format, messages output_config",
    ),
    *spread(
        "nested arrays of 1,000",
        lambda: {
            "type": "array",
            "minItems": 1000,
            "maxItems": 1000,
            "items": {
                "type": "array",
                "minItems": 1000,
                "maxItems": 1000,
                "items": {"type": "array", "minItems": 1000, "maxItems": 1000},
            },
        },
        SCHEMAS,
        "raw, chat response_format, responses text.format",
        EITHER,
    ),
    *spread(
        "maxItems 2**31",
        lambda: {
            "type": "array",
            "items": {"type": "integer"},
            "maxItems": 2**31,
            "minItems": 2**31,
        },
        SCHEMAS,
        "raw, chat response_format, responses text.format",
        EITHER,
    ),
    *spread(
        "minLength 10**9",
        lambda: {"type": "string", "minLength": 10**9},
        SCHEMAS,
        "raw, chat response_format",
        EITHER,
    ),
    *spread(
        "a range of 10**300",
        lambda: {"type": "integer", "minimum": -(10**300), "maximum": 10**300},
        SCHEMAS,
        "raw, chat response_format",
        EITHER,
    ),
    *spread(
        "a type that is none",
        lambda: {"type": "none"},
        SCHEMAS,
        "raw, chat response_format, responses text.format, messages output_config",
        EITHER,
    ),
    *spread(
        "a reference to a file",
        lambda: {"$ref": "file:///etc/passwd"},
        SCHEMAS,
        "raw, chat response_format, responses text.format",
    ),
    *spread(
        "a reference to a server",
        lambda: {"$ref": "http://127.0.0.1:9/x"},
        SCHEMAS,
        "raw, chat response_format, responses text.format",
    ),
    *spread(
        "a schema that is a list",
        lambda: [1, 2],
        SCHEMAS,
        "raw, chat response_format, responses text.format, messages output_config",
    ),
    *spread(
        "a schema that is a broken text",
        lambda: "{",
        SCHEMAS,
        "raw structured_outputs, chat structured_outputs, responses structured_outputs",
    ),
]

OTHERS = [
    Attack(
        "10,000 choices (raw)", lambda: params(guided_choice=[f"choice{i}" for i in range(10_000)])
    ),
    Attack("a choice of 1 MB (raw)", lambda: params(guided_choice=["a" * 1_000_000])),
    Attack(
        "a choice of 1 MB (responses)",
        lambda: responses(structured_outputs={"choice": ["a" * 1_000_000]}),
    ),
    Attack(
        "10,000 choices (responses)",
        lambda: responses(structured_outputs={"choice": [f"choice{i}" for i in range(10_000)]}),
    ),
    Attack("no choice (chat)", lambda: chat(structured_outputs={"choice": []})),
    Attack(
        "schema and regex at once (chat)",
        lambda: chat(structured_outputs={"json": {}, "regex": "a"}),
    ),
    Attack(
        "schema and regex at once (responses)",
        lambda: responses(structured_outputs={"json": {}, "regex": "a"}),
    ),
    Attack(
        "format and structured_outputs at once (chat)",
        lambda: chat(response_format={"type": "json_object"}, structured_outputs={"regex": THREE}),
    ),
    Attack(
        "a private key of structured_outputs (chat)",
        lambda: chat(structured_outputs={"regex": "a", "_backend": "outlines"}),
    ),
    Attack(
        "a private key of structured_outputs (responses)",
        lambda: responses(structured_outputs={"regex": "a", "_backend": "outlines"}),
    ),
    Attack(
        "a backend by request (raw)",
        lambda: params(guided_regex="a", guided_decoding_backend="outlines"),
    ),
    Attack(
        "a whitespace pattern of nested repetitions (raw)",
        lambda: params(guided_json={"type": "object"}, guided_whitespace_pattern=THREE),
        EITHER,
    ),
    Attack(
        "whitespace_pattern of nested repetitions (chat)",
        lambda: chat(structured_outputs={"json": {"type": "object"}, "whitespace_pattern": THREE}),
        EITHER,
    ),
    Attack(
        "a structural tag as text (raw)", lambda: params(structured_outputs={"structural_tag": "{"})
    ),
    Attack(
        "a structural tag with nested repetitions (raw)",
        lambda: params(
            structured_outputs={
                "structural_tag": json.dumps(
                    {"type": "structural_tag", "format": {"type": "regex", "pattern": THREE}}
                )
            },
            **LONG,
        ),
    ),
    Attack(
        "a structural tag with nested repetitions (chat)",
        lambda: chat(
            response_format={
                "type": "structural_tag",
                "format": {"type": "regex", "pattern": THREE},
            },
            **LONG,
        ),
    ),
    Attack(
        "a structural tag with a grammar (chat)",
        lambda: chat(
            response_format={
                "type": "structural_tag",
                "format": {"type": "grammar", "grammar": GRAMMAR},
            },
            **LONG,
        ),
    ),
    Attack(
        "100 KB in a structural tag's text (chat)",
        lambda: chat(
            response_format={
                "type": "structural_tag",
                "format": {"type": "const_string", "value": "a" * 100_000},
            }
        ),
    ),
    Attack(
        "1,000 triggers (chat)",
        lambda: chat(
            response_format={
                "type": "structural_tag",
                "structures": [
                    {"begin": f"<{i}>", "schema": {}, "end": "</>"} for i in range(1000)
                ],
                "triggers": [f"<{i}>" for i in range(1000)],
            }
        ),
        EITHER,
    ),
    Attack(
        "30 tools with patterns (chat)",
        lambda: chat(
            tools=[
                {"type": "function", "function": {"name": f"f{i}", "parameters": pattern(THREE)}}
                for i in range(30)
            ],
            tool_choice="required",
        ),
    ),
    Attack(
        "8 schemas of 900 properties at once",
        lambda: chat(response_format=as_format(properties(900)), max_tokens=2),
        EITHER,
        times=8,
    ),
    Attack(
        "16 expressions at once",
        lambda: params(guided_regex=f"({CANARY}|[a-z]{{0,900}}){{0,9}}"),
        EITHER,
        times=16,
    ),
    Attack(
        "8 expressions near the limit at once",
        lambda: params(guided_regex=f"({CANARY}(a|b){{0,90}}){{0,90}}", **LONG),
        EITHER,
        times=8,
    ),
]

ROWS = [*BOMBS, *RULES, *SCHEMA, *OTHERS]
