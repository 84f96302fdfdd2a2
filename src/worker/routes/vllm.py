"""The routes of vLLM's server that take a body, one row for each."""

from worker.limits.inputs import BodyShape
from worker.routes import conversations, events
from worker.routes.route import DEFAULT_CHAT_TEMPERATURE, Route

_SCORE_TEXTS = tuple("queries documents items data_1 data_2 text_1 text_2 instruction".split())

ROUTES = (
    Route(
        "POST",
        "/v1/chat/completions",
        shape=BodyShape(("messages",), is_batchable=True),
        streams=True,
        prepare_conversation=conversations.prepare_chat_messages,
        default_temperature=DEFAULT_CHAT_TEMPERATURE,
    ),
    Route(
        "POST",
        "/v1/completions",
        shape=BodyShape(("prompt",), accepts_token_ids=True, can_truncate=True, is_batchable=True),
        streams=True,
    ),
    Route(
        "POST",
        "/v1/responses",
        shape=BodyShape(
            ("instructions", "input", "previous_input_messages"),
            accepts_items=True,
            is_batchable=True,
        ),
        streams=True,
        prepare_conversation=conversations.prepare_responses_input,
        id_format="resp_{}",
        error_format=events.RESPONSES_ERRORS,
    ),
    Route(
        "POST",
        "/v1/messages",
        shape=BodyShape(("system", "messages"), is_batchable=True),
        streams=True,
        prepare_conversation=conversations.prepare_anthropic_messages,
        error_format=events.ANTHROPIC_ERRORS,
    ),
    Route(
        "POST",
        "/v1/messages/count_tokens",
        shape=BodyShape(("system", "messages")),
        prepare_conversation=conversations.prepare_anthropic_messages,
        error_format=events.ANTHROPIC_ERRORS,
    ),
    Route(
        "POST",
        "/v1/embeddings",
        shape=BodyShape(("messages", "input"), can_truncate=True, is_batchable=True),
        prepare_conversation=conversations.prepare_pooling_messages,
    ),
    Route("POST", "/score", shape=BodyShape(_SCORE_TEXTS, can_truncate=True, is_batchable=True)),
    Route(
        "POST",
        "/rerank",
        shape=BodyShape(
            ("query", "documents", "instruction"), can_truncate=True, is_batchable=True
        ),
    ),
    Route(
        "POST",
        "/pooling",
        shape=BodyShape(("messages", "input"), can_truncate=True, is_batchable=True),
        prepare_conversation=conversations.prepare_pooling_messages,
    ),
    Route(
        "POST",
        "/tokenize",
        shape=BodyShape(("messages", "prompt"), echoes_input=True),
        prepare_conversation=conversations.prepare_chat_messages,
    ),
    Route("POST", "/detokenize", shape=BodyShape(("tokens",), echoes_input=True)),
)

# Paths that lines of batches can use: those of vLLM, and with /v1 also those without it.
BATCH_PATHS = tuple(
    path
    for route in ROUTES
    if route.shape.is_batchable
    for path in dict.fromkeys((f"/v1{route.path.removeprefix('/v1')}", route.path))
)
