"""Steers generated requests, so that they go deep and stay cheap: schemathesis loads it."""

import json
import random
from typing import Any

import schemathesis

HELLO = [{"role": "user", "content": "Hi"}]
# A body for each route that takes one which vLLM answers with 200; what is generated changes it.
GOOD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 4},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 4},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 4},
    "/v1/messages": {"model": "demo", "messages": HELLO, "max_tokens": 4},
    "/v1/messages/count_tokens": {"model": "demo", "messages": HELLO},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [1, 2, 3]},
}
# What a schema's types allow, or nearly, and nobody thinks of.
ODD: list[Any] = [
    *(-1, 0, 2**31, 2**63, 2**64, -(2**64), 0.5, 1e308, True, None),
    *("", "\x00", "\ud800", "a" * 5_000, "{{ 1/0 }}", "auto", "required"),
    *([], [""], ["\ud800"], [-1], [2**64], [None], [[]], [{}]),
    *({}, {"a": 1}, {"-1": 5}, {"json": "{"}, {"regex": "("}, {"choice": []}, {"grammar": ""}),
    {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "none"}}},
    {"format": {"type": "json_schema", "name": "x", "schema": {"$ref": "#/none"}}},
]
# The tokens that an answer may have, and its choices: one that is larger is made so small, unless
# it is too large for any model, which is worth trying.
SHORT = 4
ABSURD = 100_000
COUNTS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n", "best_of")


@schemathesis.hook  # type: ignore[untyped-decorator]  # its types are not in .venv
def before_call(_: Any, case: Any, __: Any) -> None:
    """Change a request on its way out."""
    if isinstance(case.body, dict):
        valid = bool(case.meta and case.meta.generation.mode.is_positive)
        case.body = steered(case.body, case.path, valid=valid)


def steered(body: dict[str, Any], path: str, *, valid: bool) -> dict[str, Any]:
    """Return a body like this one that gets past the first checks, if it is a valid one.

    The same body is always steered the same way: a failure is tried again, and made smaller.
    """
    chance = random.Random(json.dumps(body, sort_keys=True, default=str))
    good = GOOD.get(path, {})
    if valid and chance.random() < 0.8:
        # Of fifty generated keys at once, one is always refused.
        few = chance.sample(sorted(body), min(len(body), chance.randint(0, 3)))
        body = {**good, **{key: body[key] for key in few}}
        if few and chance.random() < 0.3:
            body[few[0]] = chance.choice(ODD)
        if chance.random() < 0.3:
            body["stream"] = True
    if valid and "model" in body and chance.random() < 0.95:
        body["model"] = "demo"
    if not any(body.get(key) for key in COUNTS[:3]):
        body |= {key: SHORT for key in COUNTS[:3] if key in good}
    return {key: SHORT if _long(key, value) else value for key, value in body.items()}


def _long(key: str, value: Any) -> bool:
    return key in COUNTS and isinstance(value, int | float) and SHORT < value < ABSURD
