"""Hooks for schemathesis.

They change generated requests so that these get past the first checks and stay cheap, and count
requests by route.
"""

import atexit
import json
import os
import random
from pathlib import Path
from typing import Any

import schemathesis

HELLO = [{"role": "user", "content": "Hi"}]
# For each route, a body that vLLM answers with 200; generated keys are added to it.
VALID_BODIES: dict[str, dict[str, Any]] = {
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
# Routes of the embedding model; the main model has all others.
EMBEDS = ("/v1/embeddings", "/pooling", "/score", "/rerank")
# By method and route: the number of responses with each status, and the slowest response.
counts: dict[str, dict[str, Any]] = {}
# Unusual values that a schema's types allow or almost allow.
ODD_VALUES: list[Any] = [
    *(-1, 0, 2**31, 2**63, 2**64, -(2**64), 0.5, 1e308, True, None),
    # Schemathesis itself fails on half of a surrogate pair; the table of attacks has some.
    *("", "\x00", "a" * 5_000, "{{ 1/0 }}", "auto", "required"),
    *([], [""], [-1], [2**64], [None], [[]], [{}]),
    *({}, {"a": 1}, {"-1": 5}, {"json": "{"}, {"regex": "("}, {"choice": []}, {"grammar": ""}),
    {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "none"}}},
    {"format": {"type": "json_schema", "name": "x", "schema": {"$ref": "#/none"}}},
]
# Larger numbers of tokens and choices are replaced by SHORT. Those above ABSURD stay: they are too
# large for any model and must be refused.
SHORT = 4
ABSURD = 100_000
COUNT_KEYS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n", "best_of")


@schemathesis.hook  # type: ignore[untyped-decorator]  # its types are not in .venv
def before_call(_: Any, case: Any, __: Any) -> None:
    """Change a request before it is sent."""
    if isinstance(case.body, dict):
        valid = bool(case.meta and case.meta.generation.mode.is_positive)
        case.body = adapt(case.body, case.path, valid=valid)


@schemathesis.hook  # type: ignore[untyped-decorator]  # no types, as for before_call
def after_call(_: Any, case: Any, response: Any) -> None:
    """Count a request by its route and status."""
    route_counts = counts.setdefault(
        f"{case.method} {case.path}", {"statuses": {}, "slowest_s": 0.0}
    )
    statuses = route_counts["statuses"]
    statuses[str(response.status_code)] = statuses.get(str(response.status_code), 0) + 1
    route_counts["slowest_s"] = max(route_counts["slowest_s"], response.elapsed)


@atexit.register
def _write() -> None:
    if file := os.environ.get("COUNTS"):
        Path(file).write_text(json.dumps(counts))


def adapt(body: dict[str, Any], path: str, *, valid: bool) -> dict[str, Any]:
    """Return a similar body that requests short answers; a valid one passes vLLM's first checks.

    The result is deterministic because schemathesis repeats and shrinks a failing request.
    """
    rng = random.Random(json.dumps(body, sort_keys=True, default=str))
    valid_body = VALID_BODIES.get(path, {})
    if valid and rng.random() < 0.8:
        # Only a few keys: among fifty, at least one is always refused.
        chosen = rng.sample(sorted(body), min(len(body), rng.randint(0, 3)))
        body = {**valid_body, **{key: body[key] for key in chosen}}
        if chosen and rng.random() < 0.3:
            body[chosen[0]] = rng.choice(ODD_VALUES)
        if rng.random() < 0.3:
            body["stream"] = True
    if valid and "model" in body and rng.random() < 0.95:
        body["model"] = "minilm" if path in EMBEDS else "demo"
    if not any(body.get(key) for key in COUNT_KEYS[:3]):
        body |= {key: SHORT for key in COUNT_KEYS[:3] if key in valid_body}
    return {key: SHORT if _is_long(key, value) else value for key, value in body.items()}


def _is_long(key: str, value: Any) -> bool:
    return key in COUNT_KEYS and isinstance(value, int | float) and SHORT < value < ABSURD
