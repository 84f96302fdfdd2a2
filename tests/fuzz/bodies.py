"""Hypothesis strategies for bodies of requests, from the OpenAPI description of vLLM's server.

Most bodies are valid: a body that vLLM answers, with a few other keys whose values have the types
of the description. Keys that multiply work have small values, because nothing but the worker
limits them.
"""

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from support.traffic.extended import NAMES, SCHEMAS
from support.traffic.store import Request

from fuzz.raw_jobs import BODIES, Json, junk, with_few_keys

# Valid bodies for the routes of an embedding model.
EMBEDS: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"input": "Hi"},
    "/pooling": {"input": "Hi"},
    "/score": {"text_1": "Hi", "text_2": ["Ho"]},
    "/rerank": {"query": "Hi", "documents": ["Ho", "Ha"]},
}
VALID_BODIES = {**BODIES, **EMBEDS}
MAX_DEPTH = 8
# Keys of a body in addition to those of a valid one.
MAX_KEYS = 5
# The size of the demo model's vocabulary.
TOKENS = 620

texts: Json = st.one_of(
    st.sampled_from(
        ["Hi", "", "a b", "über", "\N{GRINNING FACE}", "42", "{}", "auto", *NAMES.values()]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)
token_ids: Json = st.lists(st.integers(0, TOKENS), max_size=5)
short: Json = st.integers(1, 3)
schemas: Json = st.sampled_from([*SCHEMAS.values(), {}])
objects: Json = st.builds(
    lambda properties, required: {
        "type": "object",
        "properties": properties,
        "required": sorted(properties) if required else [],
    },
    st.dictionaries(st.sampled_from(["a", "job id", "über", "x" * 80]), schemas, max_size=2),
    st.booleans(),
)
simple_schemas: Json = st.sampled_from(
    [
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"type": "string", "maxLength": 5},
        {"enum": [1, "a", None]},
    ]
)
functions: Json = st.builds(
    lambda name, schema, more: {"name": name or "a", "parameters": schema, **more},
    texts,
    objects,
    st.sampled_from([{}, {"description": "A tool."}, {"strict": None}, {"strict": False}]),
)
choices: Json = st.sampled_from(["auto", "none", "auto", "required"])
# By key of a body, for all routes that have it.
VALUES: dict[str, Json] = {
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens", "n"), short),
    "min_tokens": st.integers(0, 1),
    "prompt_logprobs": st.integers(-1, 3),
    "logprobs": st.one_of(st.booleans(), st.integers(0, 3)),
    "top_logprobs": st.integers(0, 20),
    "logprob_token_ids": token_ids,
    "allowed_token_ids": token_ids,
    "stop_token_ids": token_ids,
    "tokens": token_ids,
    "logit_bias": st.dictionaries(
        st.integers(0, TOKENS).map(str), st.floats(-100, 100), max_size=3
    ),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0.01, 1),
    "min_p": st.floats(0, 1),
    "top_k": st.integers(-1, 100),
    "frequency_penalty": st.floats(-2, 2),
    "presence_penalty": st.floats(-2, 2),
    "repetition_penalty": st.floats(0.5, 2),
    "bad_words": st.lists(st.text("abc", min_size=1, max_size=5), max_size=3),
    "stop": st.one_of(st.text("abc", min_size=1, max_size=5), st.lists(texts, max_size=3)),
    "prompt": st.one_of(
        texts, token_ids, st.lists(texts, max_size=3), st.lists(token_ids, max_size=3)
    ),
    "response_format": st.one_of(
        st.sampled_from([{"type": "text"}, {"type": "json_object"}]),
        simple_schemas.map(
            lambda schema: {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        ),
    ),
    "structured_outputs": st.one_of(
        simple_schemas.map(lambda schema: {"json": schema}),
        st.sampled_from([{"choice": ["a", "b"]}, {"regex": "[ab]{2}"}, {"json_object": True}]),
    ),
    "repetition_detection": st.fixed_dictionaries(
        {"max_pattern_size": short, "min_pattern_size": short, "min_count": st.integers(2, 3)}
    ),
    "vllm_xargs": st.dictionaries(texts, st.one_of(texts, st.integers()), max_size=2),
    "stream_interval": short,
}
TOOLS: dict[str, Json] = {
    "/v1/chat/completions": functions.map(lambda one: {"type": "function", "function": one}),
    "/v1/responses": functions.map(lambda one: {"type": "function", **one}),
    "/v1/messages": functions.map(
        lambda one: {
            "name": one["name"],
            "input_schema": one["parameters"],
            **{key: one[key] for key in one.keys() - {"name", "parameters"}},
        }
    ),
}
TOOLS |= {
    "/v1/messages/count_tokens": TOOLS["/v1/messages"],
    "/tokenize": TOOLS["/v1/chat/completions"],
}
HISTORIES = ("messages", "input")


class BodyStrategies:
    """Strategies for the bodies of the routes in an OpenAPI document."""

    def __init__(self, document: Mapping[str, Any], model: str) -> None:
        self._definitions: Mapping[str, Any] = document["components"]["schemas"]
        self._model = model
        self._by_place: dict[tuple[str, int], Json] = {}
        self.requests = {
            path: self._request(path, operation["requestBody"])
            for path, methods in document["paths"].items()
            if path in VALID_BODIES and (operation := methods.get("post"))
        }

    def _request(self, path: str, described: Any) -> Json:
        (media,) = described["content"].values()
        whole = media["schema"]
        fields: dict[str, Json] = {}
        for one in whole.get("anyOf", [whole]):
            resolved = self._resolve(one)
            for name, schema in resolved.get("properties", {}).items():
                fields[name] = VALUES.get(name) or self._value(schema, 1)
        valid = {**VALID_BODIES[path], "model": self._model}
        del fields["model"]
        for name in HISTORIES:
            if name in fields and path not in EMBEDS and isinstance(valid.get(name), str | list):
                fields[name] = st.tuples(st.just(valid[name]), fields[name]).map(_with_question)
        if tool := TOOLS.get(path):
            fields["tools"] = st.lists(tool, min_size=1, max_size=3)
        return with_few_keys(fields, MAX_KEYS).map(lambda keys: Request(path, {**valid, **keys}))

    def _resolve(self, schema: Any) -> Any:
        while isinstance(schema, dict) and "$ref" in schema:
            schema = self._definitions[schema["$ref"].rsplit("/", 1)[1]]
        return schema

    def _value(self, schema: Any, depth: int) -> Json:
        """Return a strategy for the values of a schema; deep values are as small as possible."""
        place = (json.dumps(schema, sort_keys=True), depth)
        if place not in self._by_place:
            self._by_place[place] = st.deferred(lambda: self._by_type(self._resolve(schema), depth))
        return self._by_place[place]

    def _by_type(self, schema: Any, depth: int) -> Json:
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            return st.none()
        if values := schema.get("enum", [schema["const"]] if "const" in schema else None):
            return st.sampled_from(values)
        if alternatives := schema.get("anyOf") or schema.get("oneOf"):
            return st.one_of(*(self._value(one, depth) for one in alternatives))
        if schema.get("type") == "array":
            items = self._value(schema.get("items", {}), depth + 1)
            return st.lists(items, min_size=schema.get("minItems", 0), max_size=3)
        if "properties" in schema:
            return self._object(schema, depth)
        return _simple(schema)

    def _object(self, schema: Any, depth: int) -> Json:
        values = {name: self._value(one, depth + 1) for name, one in schema["properties"].items()}
        required = {name: values.pop(name) for name in schema.get("required", ()) if name in values}
        optional = with_few_keys(values, 2) if values else st.just({})
        return st.tuples(st.fixed_dictionaries(required), optional).map(
            lambda parts: {**parts[0], **parts[1]}
        )


def _simple(schema: Any) -> Json:
    """Return a strategy for the values of a schema without parts."""
    by_type: dict[str, Json] = {
        "string": texts,
        "boolean": st.booleans(),
        "null": st.none(),
        "object": st.dictionaries(texts, junk, max_size=2),
    }
    kind = schema.get("type", "")
    return _numbers(schema) if kind in ("integer", "number") else by_type.get(kind, junk)


def _numbers(schema: Any) -> Json:
    lowest = schema.get("minimum", -2)
    highest = schema.get("maximum", max(100, lowest))
    if schema["type"] == "number":
        return st.floats(lowest, highest)
    large = [2**31, 2**53, 2**63, 10**30] if "maximum" not in schema else [highest]
    return st.one_of(st.integers(int(lowest), int(highest)), st.sampled_from(large))


def _with_question(parts: tuple[Any, Any]) -> Any:
    """Return a generated conversation with a question at its end; a generated text unchanged."""
    valid, generated = parts
    if not isinstance(generated, list):
        return generated
    return [
        *generated,
        *(valid if isinstance(valid, list) else [{"role": "user", "content": valid}]),
    ]
