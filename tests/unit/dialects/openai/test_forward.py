"""Requests to vLLM's server: the choice of the engine, and responses and errors passed on."""

import asyncio
import itertools
import json
from typing import Any

import pytest
from support.engine.scripted import (
    CHAT,
    ScriptedEngine,
    failure,
    split_stream_error,
    static_app,
    yields_of,
)

from worker.routes.events import has_content

COMPLETIONS = "/v1/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
EMBEDDINGS = "/v1/embeddings"
STREAM = "text/event-stream"
DECODED = {"RAW_OPENAI_OUTPUT": "0"}
# A prompt; no error may contain it.
SECRET = "my secret prompt"


def payload(route: str, **body: Any) -> dict[str, Any]:
    return {"route": route, "method": "POST", "body": body, "max_batch_delay_ms": 0}


async def get_yields(
    engine: ScriptedEngine, app: Any, route: str = CHAT, *, stream: bool = False, **environ: str
) -> list[Any]:
    """Return the yields of a job, with an app in place of vLLM's server."""
    engine.app = app
    return await yields_of(engine, payload(route, stream=stream), **environ)


async def stream_events(
    engine: ScriptedEngine, route: str, *events: str, **environ: str
) -> list[Any]:
    return await get_yields(
        engine, static_app(*events, media_type=STREAM), route, stream=True, **environ
    )


# The choice of the engine:


@pytest.mark.parametrize(
    ("route", "body", "model"),
    [
        ("/embeddings", {"input": "Hi"}, "minilm"),
        ("/tokenize", {"prompt": "Hi", "model": "org/minilm"}, "org/minilm"),
        ("/messages", {}, "demo"),
        # A null counts as absent, and adapters belong to the first engine.
        ("/tokenize", {"model": None}, "demo"),
        ("/tokenize", {"model": "pirate"}, "pirate"),
        # A name that is no string is passed on to vLLM, which refuses it.
        ("/tokenize", {"model": ["demo"]}, ["demo"]),
    ],
)
async def test_the_engine_with_the_route_or_with_the_named_model_answers(
    engine: ScriptedEngine, embedder: ScriptedEngine, route: str, body: dict[str, Any], model: Any
) -> None:
    engine.adapters = ["pirate"]
    await yields_of(engine, payload(route, **body))
    expected: list[dict[str, Any]] = [{**body, "model": model}]
    embeds = "minilm" in model
    assert (engine.requests, embedder.requests) == (([], expected) if embeds else (expected, []))


async def test_an_unknown_model_is_refused_without_a_request_to_vllm(
    engine: ScriptedEngine, embedder: ScriptedEngine
) -> None:
    error = failure(await yields_of(engine, payload("/embeddings", model="unknown")))
    assert (error["code"], error["param"]) == (404, "model")
    assert engine.requests == embedder.requests == []


@pytest.mark.parametrize(
    ("job_input", "message"),
    [
        ({"route": EMBEDDINGS, "method": "GET"}, "/v1/embeddings takes POST."),
        # The gateway sends this for a GET, and for a POST without a body.
        ({"openai_route": CHAT, "openai_input": {}}, f"{CHAT} takes POST with a body."),
        (payload("/version", a=1), "/version takes GET."),
        (payload("/health"), "/health takes GET."),
        ({"route": "/v1/files", "method": "PUT"}, "/v1/files takes POST and GET."),
    ],
)
async def test_a_wrong_method_is_refused_with_the_methods_of_the_route(
    engine: ScriptedEngine, job_input: dict[str, Any], message: str
) -> None:
    error = failure(await yields_of(engine, job_input))
    assert (error["code"], error["message"]) == (405, message)
    assert await yields_of(engine, {"route": "/version", "method": "get"}) == [{"version": "0"}]


# The end of a stream:


@pytest.mark.parametrize("status", ["incomplete", "completed"])
async def test_the_last_event_of_a_response_has_the_name_of_its_status(
    engine: ScriptedEngine, status: str
) -> None:
    response = {"id": "resp_a", "status": status}
    completed = named_event("response.completed", response=response, sequence_number=9)
    (*_, last) = await stream_events(engine, RESPONSES, DELTA, completed)
    assert last == named_event(f"response.{status}", response=response, sequence_number=9)


# The beginning of a stream:


def named_event(event: str, **data: Any) -> str:
    return f"event: {event}\ndata: {json.dumps({'type': event, **data})}\n\n"


def delta_event(**fields: Any) -> str:
    choices = [{"index": 0, "delta": fields, "finish_reason": None}]
    return f"data: {json.dumps({'choices': choices}, separators=(',', ':'))}\n\n"


CREATED, IN_PROGRESS = named_event("response.created"), named_event("response.in_progress")
DELTA = named_event("response.output_text.delta", delta="a")
DONE = "data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (delta_event(role="assistant", content=""), False),
        *((named_event(f"response.{name}"), False) for name in ("created", "output_item.added")),
        *((named_event(name), False) for name in ("message_start", "content_block_start")),
        (delta_event(role="assistant", content="a"), True),
        (DELTA, True),
        (named_event("content_block_delta"), True),
        (DONE, True),
    ],
)
def test_events_without_output_do_not_count_towards_the_size_of_a_chunk(
    event: str, expected: bool
) -> None:
    assert has_content(event) == expected


async def test_only_some_routes_stream_and_they_yield_whole_events(engine: ScriptedEngine) -> None:
    parts = ("data: 1\n\nda", "ta: 2\n\n")
    for route in (CHAT, COMPLETIONS, RESPONSES, MESSAGES):
        assert await stream_events(engine, route, *parts) == ["data: 1\n\n", "data: 2\n\n"]
    app = static_app('{"tokens": [1]}')
    assert await get_yields(engine, app, "/tokenize", stream=True) == [{"tokens": [1]}]


async def test_an_event_does_not_overtake_events_that_wait_for_the_reader(
    engine: ScriptedEngine,
) -> None:
    static = static_app("data: 1\n\n", "data: 2\n\ndata: 3\n\n", "data: 4\n\n", media_type=STREAM)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def send_and_pause(message: Any) -> None:
            await send(message)
            if message.get("body") == b"data: 1\n\n":
                # The stream begins: further events need not wait for the reader's task.
                await asyncio.sleep(0.05)

        await static(scope, receive, send_and_pause)

    events = await get_yields(engine, app, stream=True)
    assert "".join(events) == "".join(f"data: {number}\n\n" for number in range(1, 5))


@pytest.mark.parametrize(
    "events", [(CREATED, IN_PROGRESS, DELTA, CREATED, DELTA), (CREATED,)], ids=len
)
async def test_no_opening_event_is_lost(engine: ScriptedEngine, events: tuple[str, ...]) -> None:
    assert "".join(await stream_events(engine, RESPONSES, *events)) == "".join(events)


# Errors in a stream:

# The worker passes on vLLM's message without the values that it quotes.
TOO_LONG = f"zu groß (parameter=x, value={SECRET})"
ERROR = {
    **{"message": "zu groß", "type": "BadRequestError", "param": "input", "code": 400},
    **{"retryable": False, "request_id": "job-1"},
}
VLLM_ERROR = {"error": {"message": TOO_LONG, "param": "input", "code": 400}}
NAMED_ERROR_EVENT = named_event("error", **VLLM_ERROR["error"])
ERROR_EVENT = f"data: {json.dumps(VLLM_ERROR)}\n\n"
CHUNK = 'data: {"choices": []}\n\n'


@pytest.mark.parametrize(
    ("route", "events"),
    [(RESPONSES, (CREATED, IN_PROGRESS, NAMED_ERROR_EVENT)), (CHAT, (ERROR_EVENT, DONE))],
)
async def test_a_stream_that_fails_before_its_first_output_yields_only_the_error(
    engine: ScriptedEngine, route: str, events: tuple[str, ...]
) -> None:
    (chunk,) = await stream_events(engine, route, *events)
    assert failure([chunk]) == ERROR


async def test_a_broken_chat_stream_ends_with_an_error_event_and_done(
    engine: ScriptedEngine,
) -> None:
    last_events = f"data: {json.dumps({'error': ERROR}, ensure_ascii=False)}\n\n{DONE}"
    for route in (CHAT, COMPLETIONS):
        yields = await stream_events(engine, route, CHUNK, ERROR_EVENT, DONE)
        assert split_stream_error(yields) == ([CHUNK, last_events], ERROR)
    decoded = await stream_events(engine, CHAT, CHUNK, ERROR_EVENT, DONE, **DECODED)
    assert split_stream_error(decoded) == ([[{"choices": []}], [{"error": ERROR}]], ERROR)


async def test_a_broken_stream_of_messages_ends_with_anthropics_error_event(
    engine: ScriptedEngine,
) -> None:
    first_event = named_event("content_block_delta")
    error = VLLM_ERROR["error"] | {"type": "invalid_request_error"}
    events = (first_event, named_event("error", error=error))
    event = {"type": "error", "error": ERROR}
    yields = await stream_events(engine, MESSAGES, *events)
    last_event = f"event: error\ndata: {json.dumps(event, ensure_ascii=False)}\n\n"
    assert split_stream_error(yields) == ([first_event, last_event], ERROR)
    assert json.loads(yields[-1]["error"]) == event
    decoded = await stream_events(engine, MESSAGES, *events, **DECODED)
    assert split_stream_error(decoded) == ([[{"type": "content_block_delta"}], [event]], ERROR)


async def test_a_broken_stream_of_a_response_ends_with_its_own_error_event(
    engine: ScriptedEngine,
) -> None:
    events, error = split_stream_error(
        await stream_events(engine, RESPONSES, CREATED, DELTA, NAMED_ERROR_EVENT)
    )
    head, _, data = events[-1].partition("data: ")
    assert (head, data[-2:], error) == ("event: error\n", "\n\n", ERROR)
    fields = {name: ERROR[name] for name in ("code", "message", "param")}
    assert json.loads(data) == {"type": "error", **fields, "error": ERROR}


# Failed jobs:


async def test_errors_of_anthropics_routes_have_anthropics_shape(engine: ScriptedEngine) -> None:
    app = static_app(json.dumps(VLLM_ERROR), status=400)
    for route, stream in itertools.product((MESSAGES, f"{MESSAGES}/count_tokens"), (False, True)):
        (chunk,) = await get_yields(engine, app, route, stream=stream)
        assert json.loads(chunk["error"]) == {"type": "error", "error": ERROR}
    (chunk,) = await get_yields(engine, app, CHAT)
    assert json.loads(chunk["error"]) == {"error": ERROR}


@pytest.mark.parametrize(
    ("body", "status", "message", "retryable"),
    [
        ('{"error": {"message": "no", "code": 400}}', 404, "no", False),
        ('{"error": {"message": "no", "code": 400}}', 429, "no", True),
        # From vLLM's web framework.
        ('{"detail": "Method Not Allowed"}', 405, "Method Not Allowed", False),
    ],
)
async def test_vllms_statuses_and_messages_are_passed_on(
    engine: ScriptedEngine, body: str, status: int, message: str, retryable: bool
) -> None:
    error = failure(await get_yields(engine, static_app(body, status=status)))
    assert (error["code"], error["message"], error["retryable"]) == (status, message, retryable)


@pytest.mark.parametrize(
    "app",
    [
        static_app(f'{{"error": {{"message": "{SECRET} (parameter=x, value=y)"}}}}', status=500),
        static_app(named_event("error", error={"message": SECRET}), media_type=STREAM),
        static_app(f'data: {{"error": {{"message": "{SECRET}"}}}}\n\n', media_type=STREAM),
        static_app(named_event("error", message=SECRET, code=500), media_type=STREAM),
    ],
    ids=["whole", "anthropics", "openais", "with-code"],
)
async def test_an_internal_error_of_vllm_is_logged_and_not_sent(
    engine: ScriptedEngine, app: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (chunk,) = await get_yields(engine, app, MESSAGES, stream=True)
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
async def test_error_messages_have_no_text_of_the_caller(
    engine: ScriptedEngine, message: str, sent: str
) -> None:
    app = static_app(json.dumps({"error": {"message": message, "param": "p"}}), status=400)
    error = failure(await get_yields(engine, app))
    assert (error["message"], error["param"], error["code"]) == (sent, "p", 400)
