"""Requests to vLLM's server: which engine's, and how its answers and errors are passed on."""

import itertools
import json
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

from worker.routes.events import weight

COMPLETIONS = "/v1/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
EMBEDDINGS = "/v1/embeddings"
STREAM = "text/event-stream"
DECODED = {"RAW_OPENAI_OUTPUT": "0"}
# A prompt, which no error may repeat.
SECRET = "my secret prompt"


def payload(route: str, **body: Any) -> dict[str, Any]:
    return {"route": route, "method": "POST", "body": body, "max_batch_delay_ms": 0}


async def answered(
    engine: ScriptedEngine, app: Any, route: str = CHAT, *, stream: bool = False, **environ: str
) -> list[Any]:
    """Return the yields of a job, with an app in place of vLLM's server."""
    engine.app = app
    return await yields_of(engine, payload(route, stream=stream), **environ)


async def streamed(engine: ScriptedEngine, route: str, *events: str, **environ: str) -> list[Any]:
    return await answered(
        engine, replying(*events, media_type=STREAM), route, stream=True, **environ
    )


# Which engine:


@pytest.mark.parametrize(
    ("route", "body", "model"),
    [
        ("/embeddings", {"input": "Hi"}, "minilm"),
        ("/tokenize", {"prompt": "Hi", "model": "org/minilm"}, "org/minilm"),
        ("/messages", {}, "demo"),
        # A null counts as absent, and an adapter is the first engine's.
        ("/tokenize", {"model": None}, "demo"),
        ("/tokenize", {"model": "pirate"}, "pirate"),
        # vLLM refuses a name that is no string.
        ("/tokenize", {"model": ["demo"]}, ["demo"]),
    ],
)
async def test_the_engine_of_the_route_or_of_the_named_model_answers(
    engine: ScriptedEngine, embedder: ScriptedEngine, route: str, body: dict[str, Any], model: Any
) -> None:
    engine.adapters = ["pirate"]
    await yields_of(engine, payload(route, **body))
    expected: list[dict[str, Any]] = [{**body, "model": model}]
    embeds = "minilm" in model
    assert (engine.asked, embedder.asked) == (([], expected) if embeds else (expected, []))


async def test_an_unknown_adapter_is_refused_before_vllm_is_asked(
    engine: ScriptedEngine, embedder: ScriptedEngine
) -> None:
    error = failure(await yields_of(engine, payload("/embeddings", model="unknown")))
    assert (error["code"], error["param"]) == (404, "model")
    assert engine.asked == embedder.asked == []


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"route": EMBEDDINGS, "method": "GET"}, "/v1/embeddings takes POST."),
        (payload("/version", a=1), "/version takes GET."),
        (payload("/health"), "/health takes GET."),
        ({"route": "/v1/files", "method": "PUT"}, "/v1/files takes POST and GET."),
    ],
)
async def test_a_route_has_methods(
    engine: ScriptedEngine, asked: dict[str, Any], message: str
) -> None:
    error = failure(await yields_of(engine, asked))
    assert (error["code"], error["message"]) == (405, message)
    assert await yields_of(engine, {"route": "/version", "method": "get"}) == [{"version": "0"}]


# How a stream begins:


def named(event: str, **data: Any) -> str:
    return f"event: {event}\ndata: {json.dumps({'type': event, **data})}\n\n"


def delta(**said: Any) -> str:
    choices = [{"index": 0, "delta": said, "finish_reason": None}]
    return f"data: {json.dumps({'choices': choices}, separators=(',', ':'))}\n\n"


CREATED, IN_PROGRESS = named("response.created"), named("response.in_progress")
DELTA = named("response.output_text.delta", delta="a")
DONE = "data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("event", "counts"),
    [
        (delta(role="assistant", content=""), 0),
        *((named(f"response.{name}"), 0) for name in ("created", "output_item.added")),
        *((named(name), 0) for name in ("message_start", "content_block_start")),
        (delta(role="assistant", content="a"), 1),
        (DELTA, 1),
        (named("content_block_delta"), 1),
        (DONE, 1),
    ],
)
def test_only_what_is_no_announcement_counts_in_a_chunk(event: str, counts: int) -> None:
    assert weight(event) == counts


async def test_these_routes_stream_in_whole_events_and_no_others(engine: ScriptedEngine) -> None:
    parts = ("data: 1\n\nda", "ta: 2\n\n")
    for route in (CHAT, COMPLETIONS, RESPONSES, MESSAGES):
        assert await streamed(engine, route, *parts) == ["data: 1\n\n", "data: 2\n\n"]
    app = replying('{"tokens": [1]}')
    assert await answered(engine, app, "/tokenize", stream=True) == [{"tokens": [1]}]


@pytest.mark.parametrize(
    "events", [(CREATED, IN_PROGRESS, DELTA, CREATED, DELTA), (CREATED,)], ids=len
)
async def test_no_opening_event_is_lost(engine: ScriptedEngine, events: tuple[str, ...]) -> None:
    assert "".join(await streamed(engine, RESPONSES, *events)) == "".join(events)


# How a stream breaks, at its beginning or later:

# Of vLLM's message the characters stay, and no value that it quotes.
TOO_LONG = f"zu groß (parameter=x, value={SECRET})"
ERROR = {
    **{"message": "zu groß", "type": "BadRequestError", "param": "input", "code": 400},
    **{"retryable": False, "request_id": "job-1"},
}
VLLMS = {"error": {"message": TOO_LONG, "param": "input", "code": 400}}
BROKEN = named("error", **VLLMS["error"])
BREAKS = f"data: {json.dumps(VLLMS)}\n\n"
SAID = 'data: {"choices": []}\n\n'


@pytest.mark.parametrize(
    ("route", "events"), [(RESPONSES, (CREATED, IN_PROGRESS, BROKEN)), (CHAT, (BREAKS, DONE))]
)
async def test_a_stream_that_is_refused_before_it_has_said_anything_fails_the_job_alone(
    engine: ScriptedEngine, route: str, events: tuple[str, ...]
) -> None:
    (only,) = await streamed(engine, route, *events)
    assert failure([only]) == ERROR


async def test_a_chat_breaks_with_an_error_and_its_mark(engine: ScriptedEngine) -> None:
    last_events = f"data: {json.dumps({'error': ERROR}, ensure_ascii=False)}\n\n{DONE}"
    for route in (CHAT, COMPLETIONS):
        yields = await streamed(engine, route, SAID, BREAKS, DONE)
        assert broken_stream(yields) == ([SAID, last_events], ERROR)
    decoded = await streamed(engine, CHAT, SAID, BREAKS, DONE, **DECODED)
    assert broken_stream(decoded) == ([[{"choices": []}], [{"error": ERROR}]], ERROR)


async def test_messages_break_with_an_event_of_anthropics(engine: ScriptedEngine) -> None:
    begun = named("content_block_delta")
    error = VLLMS["error"] | {"type": "invalid_request_error"}
    events = (begun, named("error", error=error))
    event = {"type": "error", "error": ERROR}
    yields = await streamed(engine, MESSAGES, *events)
    last_event = f"event: error\ndata: {json.dumps(event, ensure_ascii=False)}\n\n"
    assert broken_stream(yields) == ([begun, last_event], ERROR)
    assert json.loads(yields[-1]["error"]) == event
    decoded = await streamed(engine, MESSAGES, *events, **DECODED)
    assert broken_stream(decoded) == ([[{"type": "content_block_delta"}], [event]], ERROR)


async def test_a_response_breaks_with_an_event_of_its_own_shape(engine: ScriptedEngine) -> None:
    begun, error = broken_stream(await streamed(engine, RESPONSES, CREATED, DELTA, BROKEN))
    head, _, data = begun[-1].partition("data: ")
    assert (head, data[-2:], error) == ("event: error\n", "\n\n", ERROR)
    own = {name: ERROR[name] for name in ("code", "message", "param")}
    assert json.loads(data) == {"type": "error", **own, "error": ERROR}


# How a job fails:


async def test_errors_of_anthropics_routes_have_anthropics_shape(engine: ScriptedEngine) -> None:
    app = replying(json.dumps(VLLMS), status=400)
    for route, stream in itertools.product((MESSAGES, f"{MESSAGES}/count_tokens"), (False, True)):
        (chunk,) = await answered(engine, app, route, stream=stream)
        assert json.loads(chunk["error"]) == {"type": "error", "error": ERROR}
    (chunk,) = await answered(engine, app, CHAT)
    assert json.loads(chunk["error"]) == {"error": ERROR}


@pytest.mark.parametrize(
    ("body", "status", "message", "retryable"),
    [
        ('{"error": {"message": "no", "code": 400}}', 404, "no", False),
        ('{"error": {"message": "no", "code": 400}}', 429, "no", True),
        # Of its web framework.
        ('{"detail": "Method Not Allowed"}', 405, "Method Not Allowed", False),
    ],
)
async def test_vllms_statuses_and_messages_stay(
    engine: ScriptedEngine, body: str, status: int, message: str, retryable: bool
) -> None:
    error = failure(await answered(engine, replying(body, status=status)))
    assert (error["code"], error["message"], error["retryable"]) == (status, message, retryable)


@pytest.mark.parametrize(
    "app",
    [
        replying(f'{{"error": {{"message": "{SECRET} (parameter=x, value=y)"}}}}', status=500),
        replying(named("error", error={"message": SECRET}), media_type=STREAM),
        replying(f'data: {{"error": {{"message": "{SECRET}"}}}}\n\n', media_type=STREAM),
        replying(named("error", message=SECRET, code=500), media_type=STREAM),
    ],
    ids=["whole", "anthropics", "openais", "with-code"],
)
async def test_an_internal_error_of_vllm_is_logged_and_not_sent(
    engine: ScriptedEngine, app: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (chunk,) = await answered(engine, app, MESSAGES, stream=True)
    assert json.loads(chunk["error"])["error"]["code"] == 500
    assert SECRET not in chunk["error"]
    assert caplog.messages == [f"request job-1: vLLM's server answers 500: {SECRET}"]


@pytest.mark.parametrize(
    ("message", "sent"),
    [
        ("a --flag, a -- dash and -a-b", "a --flag, a -- dash and -a-b"),
        ("--enable-auto-tool-choice, 5", "ENABLE_AUTO_TOOL_CHOICE, 5"),
        ("no (parameter=a.b, value=--served-model-name)", "no"),
        (f"no (parameter=messages, value=[{SECRET}\n(x)])\nmore", "no"),
        (f"no [type=string_type, input_value='{SECRET}', input_type=str]", "no"),
        ("no\n    For further information visit https://errors.pydantic.dev/2/v/x", "no"),
        (f"not a tool: {{'prompt': '{SECRET}'}}", "not a tool"),
        ("two: {'a': 1}\n{'b': 2}", "two"),
        ("a plain message (with brackets)", "a plain message (with brackets)"),
        ("x" * 1_999 + " (parameter=x", "x" * 1_999 + " "),
    ],
)
async def test_messages_have_no_user_text(engine: ScriptedEngine, message: str, sent: str) -> None:
    app = replying(json.dumps({"error": {"message": message, "param": "p"}}), status=400)
    error = failure(await answered(engine, app))
    assert (error["message"], error["param"], error["code"]) == (sent, "p", 400)
