"""Requests to vLLM's server: which engine's, and how its answers and errors are passed on."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from support.engine.scripted import (
    CHAT,
    ScriptedEngine,
    broken_stream,
    failure,
    replying,
    yields_of,
)

from worker.engine import Model
from worker.job import OpenAIJob

MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
EMBEDDINGS = "/v1/embeddings"
STREAM = "text/event-stream"


def payload(route: str, **body: Any) -> dict[str, Any]:
    return {"route": route, "method": "POST", "body": body, "max_batch_delay_ms": 0}


async def answered(app: Any, route: str, *, stream: bool = False, **environ: str) -> list[Any]:
    """Return the yields of a job, with an app in place of vLLM's server."""
    with ScriptedEngine(app=app) as engine:
        return await yields_of(engine, payload(route, stream=stream), **environ)


# Which engine:


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as engine:
        yield engine


@pytest.fixture
def embedder(engine: ScriptedEngine) -> Iterator[ScriptedEngine]:
    """A second engine, for embeddings."""
    with ScriptedEngine() as embedder:
        embedder.model = Model(("minilm", "org/minilm"), 512, "cpu", frozenset({"embed"}))
        keys = frozenset({"model", "input", "prompt"})
        embedder.bodies = {EMBEDDINGS: keys, "/tokenize": keys}
        engine.embedder = embedder
        yield embedder


async def test_a_route_that_only_one_engine_has_goes_to_that_engine(
    engine: ScriptedEngine, embedder: ScriptedEngine
) -> None:
    assert await yields_of(engine, payload("/embeddings", input="Hi")) == [{"path": EMBEDDINGS}]
    assert (engine.asked, embedder.asked) == ([], [{"input": "Hi", "model": "minilm"}])
    assert await yields_of(engine, payload("/messages")) == [{"path": MESSAGES}]
    assert engine.asked == [{"model": "demo"}]


@pytest.mark.parametrize("name", ["minilm", "org/minilm"])
async def test_the_engine_of_the_named_model_answers(
    engine: ScriptedEngine, embedder: ScriptedEngine, name: str
) -> None:
    await yields_of(engine, payload("/tokenize", prompt="Hi", model=name))
    assert (engine.asked, embedder.asked) == ([], [{"prompt": "Hi", "model": name}])


@pytest.mark.parametrize("model", [{}, {"model": None}, {"model": "demo"}, {"model": "pirate"}])
async def test_without_the_embedders_name_the_first_engine_answers(
    engine: ScriptedEngine, embedder: ScriptedEngine, model: dict[str, Any]
) -> None:
    engine.adapters = ["pirate"]
    await yields_of(engine, payload("/tokenize", **model))
    assert (len(engine.asked), embedder.asked) == (1, [])


async def test_an_unknown_adapter_is_refused_before_vllm_is_asked(
    engine: ScriptedEngine, embedder: ScriptedEngine
) -> None:
    for route in ("/tokenize", "/embeddings"):
        error = failure(await yields_of(engine, payload(route, model="unknown")))
        assert (error["code"], error["param"]) == (404, "model")
    assert engine.asked == embedder.asked == []


async def test_vllm_refuses_a_model_that_is_not_a_string(engine: ScriptedEngine) -> None:
    await yields_of(engine, payload("/tokenize", model=["demo"]))
    assert engine.asked == [{"model": ["demo"]}]


async def test_a_route_that_no_engine_has_is_refused_with_advice(
    engine: ScriptedEngine,
) -> None:
    error = failure(await yields_of(engine, payload("/v1/embeddings")))
    assert error["code"] == 404
    assert error["message"].startswith(f"No model of this worker answers {EMBEDDINGS}: 'demo' gen")
    assert "set EMBEDDING_MODEL_NAME" in error["message"]


@pytest.mark.usefixtures("embedder")
async def test_a_route_that_neither_engine_has_is_refused_with_the_names_of_both(
    engine: ScriptedEngine,
) -> None:
    error = failure(await yields_of(engine, payload("/rerank")))
    assert error["message"].endswith(" answers /rerank: 'demo' generates text; 'minilm' embeds.")


async def test_a_pooling_model_is_not_advised_to_add_an_embedder(
    engine: ScriptedEngine,
) -> None:
    engine.model, engine.bodies = Model(("demo",), 512, "cpu", frozenset({"embed"})), {}
    error = failure(await yields_of(engine, payload(CHAT)))
    assert error["message"] == f"No model of this worker answers {CHAT}: 'demo' embeds."


async def test_a_route_is_read_with_its_method(engine: ScriptedEngine) -> None:
    error = failure(await yields_of(engine, {"route": "/v1/embeddings", "method": "GET"}))
    assert (error["code"], error["message"]) == (405, "/v1/embeddings takes POST.")
    error = failure(await yields_of(engine, payload("/version", a=1)))
    assert (error["code"], error["message"]) == (405, "/version takes GET.")


# Which routes stream:


@pytest.mark.parametrize("route", [CHAT, "/v1/completions", RESPONSES, MESSAGES])
async def test_these_routes_stream_in_whole_events(route: str) -> None:
    app = replying("data: 1\n\nda", "ta: 2\n\n", media_type=STREAM)
    assert await answered(app, route, stream=True) == ["data: 1\n\n", "data: 2\n\n"]


async def test_other_routes_do_not_stream_whatever_is_asked() -> None:
    assert await answered(replying('{"tokens": [1]}'), "/tokenize", stream=True) == [
        {"tokens": [1]}
    ]


@pytest.mark.parametrize(
    ("route", "path", "versioned"),
    [
        ("/v1/chat/completions", "/chat/completions", True),
        ("chat/completions/", "/chat/completions", False),
        ("v1/models/v1/x", "/models/v1/x", True),
        ("/v1/models/org%2Fx?a=b", "/models/org/x", True),
        ("/v1", "/v1", False),
        ("/v10/models", "/v10/models", False),
    ],
)
def test_a_route_counts_with_and_without_v1(route: str, path: str, versioned: bool) -> None:
    job = OpenAIJob(route=route)
    assert (job.path, job.versioned) == (path, versioned)


# How a stream begins:


def named(event: str, **data: Any) -> str:
    return f"event: {event}\ndata: {json.dumps({'type': event, **data})}\n\n"


CREATED, IN_PROGRESS = named("response.created"), named("response.in_progress")
DELTA = named("response.output_text.delta", delta="a")
BROKEN = named("error", message="too long", code=400, param="input")


async def test_a_stream_that_is_refused_after_its_opening_fails_the_job() -> None:
    app = replying(CREATED, IN_PROGRESS, BROKEN, media_type=STREAM)
    error = failure(await answered(app, RESPONSES, stream=True))
    assert (error["message"], error["code"], error["param"]) == ("too long", 400, "input")


async def test_an_opening_goes_before_what_follows_it() -> None:
    app = replying(CREATED, IN_PROGRESS, DELTA, CREATED, DELTA, media_type=STREAM)
    yields = await answered(app, RESPONSES, stream=True)
    assert "".join(yields) == CREATED + IN_PROGRESS + DELTA + CREATED + DELTA


async def test_an_opening_that_nothing_follows_is_not_lost() -> None:
    yields = await answered(replying(CREATED, media_type=STREAM), RESPONSES, stream=True)
    assert "".join(yields) == CREATED


# How a stream breaks:

ERROR = {
    "message": "too long",
    "type": "BadRequestError",
    "param": "input",
    "code": 400,
    "retryable": False,
    "request_id": "job-1",
}
VLLMS = f"data: {json.dumps({'error': {'message': 'too long', 'param': 'input', 'code': 400}})}\n\n"
SAID = 'data: {"choices": []}\n\n'


@pytest.mark.parametrize("route", [CHAT, "/v1/completions"])
async def test_a_chat_breaks_with_an_error_and_its_closing_mark(route: str) -> None:
    app = replying(SAID, VLLMS, "data: [DONE]\n\n", media_type=STREAM)
    yields = await answered(app, route, stream=True)
    last_events = f"data: {json.dumps({'error': ERROR})}\n\ndata: [DONE]\n\n"
    assert broken_stream(yields) == ([SAID, last_events], ERROR)
    decoded = await answered(app, route, stream=True, RAW_OPENAI_OUTPUT="0")
    assert broken_stream(decoded) == ([[{"choices": []}], [{"error": ERROR}]], ERROR)


async def test_messages_break_with_an_event_of_anthropics() -> None:
    begun = named("content_block_delta")
    error = {"message": "too long", "type": "invalid_request_error", "code": 400, "param": "input"}
    app = replying(begun, named("error", error=error), media_type=STREAM)
    event = {"type": "error", "error": ERROR}
    yields = await answered(app, MESSAGES, stream=True)
    last_event = f"event: error\ndata: {json.dumps(event)}\n\n"
    assert broken_stream(yields) == ([begun, last_event], ERROR)
    assert json.loads(yields[-1]["error"]) == event
    decoded = await answered(app, MESSAGES, stream=True, RAW_OPENAI_OUTPUT="0")
    assert broken_stream(decoded) == ([[{"type": "content_block_delta"}], [event]], ERROR)


async def test_a_response_breaks_with_an_event_of_its_own_shape() -> None:
    app = replying(CREATED, DELTA, BROKEN, media_type=STREAM)
    yields = await answered(app, RESPONSES, stream=True)
    begun, failed_with = broken_stream(yields)
    head, _, data = begun[-1].partition("data: ")
    assert (head, data[-2:]) == ("event: error\n", "\n\n")
    own = {"code": 400, "message": "too long", "param": "input"}
    assert json.loads(data) == {"type": "error", **own, "error": ERROR}
    assert failed_with == ERROR


async def test_an_error_keeps_its_characters() -> None:
    app = replying(SAID, VLLMS.replace("too long", "zu groß"), media_type=STREAM)
    (_, last_events), failed_with = broken_stream(await answered(app, CHAT, stream=True))
    assert "zu groß" in last_events
    assert failed_with["message"] == "zu groß"


# How a job fails:


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        (MESSAGES, {"type": "error"}),
        ("/v1/messages/count_tokens", {"type": "error"}),
        (CHAT, {}),
        (RESPONSES, {}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_of_anthropics_routes_have_anthropics_shape(
    route: str, expected: dict[str, str], stream: bool
) -> None:
    refusal = {"error": {"message": "too long", "param": "input"}}
    app = replying(json.dumps(refusal), status=400)
    (chunk,) = await answered(app, route, stream=stream)
    assert json.loads(chunk["error"]) == {**expected, "error": ERROR}


async def test_a_refusal_of_vllms_web_framework_keeps_its_message() -> None:
    app = replying('{"detail": "Method Not Allowed"}', status=405)
    error = failure(await answered(app, "/tokenize"))
    assert (error["code"], error["message"]) == (405, "Method Not Allowed")


@pytest.mark.parametrize(("status", "retryable"), [(404, False), (429, True), (503, True)])
async def test_other_statuses_of_vllm_are_kept(status: int, retryable: bool) -> None:
    body = {"error": {"message": "no", "code": 400}}
    error = failure(await answered(replying(json.dumps(body), status=status), CHAT))
    assert (error["code"], error["message"]) == (status, "no")
    assert error["retryable"] is retryable


@pytest.mark.parametrize(
    "app",
    [
        replying('{"error": {"message": "a secret path (parameter=x, value=y)"}}', status=500),
        replying(named("error", error={"message": "a secret path"}), media_type=STREAM),
        replying('data: {"error": {"message": "a secret path"}}\n\n', media_type=STREAM),
        replying(named("error", message="a secret path", code=500), media_type=STREAM),
    ],
    ids=["whole", "anthropics", "openais", "with-code"],
)
async def test_an_internal_error_of_vllm_is_logged_and_not_sent(
    app: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        (chunk,) = await answered(app, MESSAGES, stream=True)
    assert json.loads(chunk["error"])["error"]["code"] == 500
    assert "secret" not in chunk["error"]
    assert caplog.messages == ["request job-1: vLLM's server answers 500: a secret path"]


@pytest.mark.parametrize(
    ("message", "sent"),
    [
        ("--tokenizer-mode and --max-logprobs", "TOKENIZER_MODE and MAX_LOGPROBS"),
        ("a --flag, a -- dash and -a-b", "a --flag, a -- dash and -a-b"),
        ("--enable-auto-tool-choice, 5", "ENABLE_AUTO_TOOL_CHOICE, 5"),
        ("no (parameter=a.b, value=--served-model-name)", "no"),
        ("no (parameter=x, value=a\nb)\nmore", "no"),
        ("wrong\n    For further information visit a", "wrong"),
        ("x" * 1_999 + " (parameter=x", "x" * 1_999 + " "),
        ("two: {'a': 1}\n{'b': 2}", "two"),
    ],
)
async def test_messages_name_settings_and_hold_no_refused_value(message: str, sent: str) -> None:
    app = replying(json.dumps({"error": {"message": message}}), status=400)
    assert failure(await answered(app, CHAT))["message"] == sent
