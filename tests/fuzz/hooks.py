"""Hooks of schemathesis: they change generated requests so that they go deep and stay cheap, and
count them by route.
"""

import atexit
import json
import os
import random
from pathlib import Path
from typing import Any

import schemathesis

HELLO = [{"role": "user", "content": "Hi"}]
# A body per route that vLLM answers with 200; generated keys are added to it.
GOOD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 4},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 4},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 4},
    "/v1/messages": {"model": "demo", "messages": HELLO, "max_tokens": 4},
    "/v1/messages/count_tokens": {"model": "demo", "messages": HELLO},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [1, 2, 3]},
    "/v1/embeddings": {"input": "Hi"},
    "/pooling": {"input": "Hi"},
    "/score": {"text_1": "Hi", "text_2": ["Ho"]},
    "/rerank": {"query": "Hi", "documents": ["Ho", "Ha"]},
}
# Routes of the embedder; all others are the main model's.
EMBEDS = ("/v1/embeddings", "/pooling", "/score", "/rerank")
# What was sent: by method and route, how many answers had which status, and the slowest.
counts: dict[str, dict[str, Any]] = {}
# Unusual values that a schema's types allow, or nearly.
ODD: list[Any] = [
    *(-1, 0, 2**31, 2**63, 2**64, -(2**64), 0.5, 1e308, True, None),
    # No half of a surrogate pair: schemathesis itself fails on it (the table of attacks has some).
    *("", "\x00", "a" * 5_000, "{{ 1/0 }}", "auto", "required"),
    *([], [""], [-1], [2**64], [None], [[]], [{}]),
    *({}, {"a": 1}, {"-1": 5}, {"json": "{"}, {"regex": "("}, {"choice": []}, {"grammar": ""}),
    {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "none"}}},
    {"format": {"type": "json_schema", "name": "x", "schema": {"$ref": "#/none"}}},
]
# Larger counts of tokens and choices are set to SHORT, but not those above ABSURD: too large for
# any model, they must be refused.
SHORT = 4
ABSURD = 100_000
COUNTS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n", "best_of")


@schemathesis.hook  # type: ignore[untyped-decorator]  # its types are not in .venv
def before_call(_: Any, case: Any, __: Any) -> None:
    """Change a request before it is sent."""
    if isinstance(case.body, dict):
        valid = bool(case.meta and case.meta.generation.mode.is_positive)
        case.body = adapt(case.body, case.path, valid=valid)


@schemathesis.hook  # type: ignore[untyped-decorator]  # as above
def after_call(_: Any, case: Any, response: Any) -> None:
    """Count a request."""
    of_route = counts.setdefault(f"{case.method} {case.path}", {"statuses": {}, "slowest_s": 0.0})
    statuses = of_route["statuses"]
    statuses[str(response.status_code)] = statuses.get(str(response.status_code), 0) + 1
    of_route["slowest_s"] = max(of_route["slowest_s"], response.elapsed)


@atexit.register
def _write() -> None:
    if file := os.environ.get("COUNTS"):
        Path(file).write_text(json.dumps(counts))


def adapt(body: dict[str, Any], path: str, *, valid: bool) -> dict[str, Any]:
    """Return a similar body that asks for short answers; a valid one passes vLLM's first checks.

    Deterministic: schemathesis repeats a failing request, and shrinks it.
    """
    chance = random.Random(json.dumps(body, sort_keys=True, default=str))
    good = GOOD.get(path, {})
    if valid and chance.random() < 0.8:
        # Few keys: among fifty, one is always refused.
        few = chance.sample(sorted(body), min(len(body), chance.randint(0, 3)))
        body = {**good, **{key: body[key] for key in few}}
        if few and chance.random() < 0.3:
            body[few[0]] = chance.choice(ODD)
        if chance.random() < 0.3:
            body["stream"] = True
    if valid and "model" in body and chance.random() < 0.95:
        body["model"] = "minilm" if path in EMBEDS else "demo"
    if not any(body.get(key) for key in COUNTS[:3]):
        body |= {key: SHORT for key in COUNTS[:3] if key in good}
    return {key: SHORT if _is_long(key, value) else value for key, value in body.items()}


def _is_long(key: str, value: Any) -> bool:
    return key in COUNTS and isinstance(value, int | float) and SHORT < value < ABSURD
