"""The routes of vLLM's server that take a body: a row for each, from which all else is derived."""

from worker.limits.shapes import Shape
from worker.routes import conversations, events
from worker.routes.route import CHAT_TEMPERATURE, Route

_SCORED = tuple("queries documents items data_1 data_2 text_1 text_2 instruction".split())

ROUTES = (
    Route(
        "POST",
        "/v1/chat/completions",
        shape=Shape(("messages",), batch=True),
        streams=True,
        complete=conversations.chat,
        temperature=CHAT_TEMPERATURE,
    ),
    Route(
        "POST",
        "/v1/completions",
        shape=Shape(("prompt",), continues=True, truncates=True, batch=True),
        streams=True,
    ),
    Route(
        "POST",
        "/v1/responses",
        shape=Shape(("instructions", "input", "previous_input_messages"), items=True, batch=True),
        streams=True,
        complete=conversations.response,
        response_id="resp_{}",
        errors=events.RESPONSES,
    ),
    Route(
        "POST",
        "/v1/messages",
        shape=Shape(("system", "messages"), batch=True),
        streams=True,
        complete=conversations.anthropic,
        errors=events.ANTHROPIC,
    ),
    Route(
        "POST",
        "/v1/messages/count_tokens",
        shape=Shape(("system", "messages")),
        complete=conversations.anthropic,
        errors=events.ANTHROPIC,
    ),
    Route("POST", "/v1/embeddings", shape=Shape(("messages", "input"), truncates=True, batch=True)),
    Route("POST", "/score", shape=Shape(_SCORED, truncates=True, batch=True)),
    Route(
        "POST",
        "/rerank",
        shape=Shape(("query", "documents", "instruction"), truncates=True, batch=True),
    ),
    Route("POST", "/pooling", shape=Shape(("messages", "input"), truncates=True, batch=True)),
    Route(
        "POST",
        "/tokenize",
        shape=Shape(("messages", "prompt"), repeats=True),
        complete=conversations.chat,
    ),
    Route("POST", "/detokenize", shape=Shape(("tokens",), repeats=True)),
)

# Where lines of batches can go, as callers write it: with /v1 wherever they like.
BATCH_PATHS = tuple(
    path
    for row in ROUTES
    if row.shape.batch
    for path in dict.fromkeys((f"/v1{row.path.removeprefix('/v1')}", row.path))
)
