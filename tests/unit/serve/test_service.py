"""The OpenAI path over HTTP: requests, responses, and clients that disconnect."""

import asyncio
import gzip
import json
import tracemalloc
from typing import Any

import pytest
from support.engine.connections import http_request, serve_http
from support.engine.scripted import (
    CHAT,
    HANG,
    ScriptedEngine,
    events_in,
    settings,
    static_app,
    texts_in,
    tokens,
)
from support.processes.background import HUNG_S, poll_until
from support.serve_client import HELLO, ServeClient, disconnect_after, error_of, post_streamed_body

from worker.errors import EngineBusy, EngineDead, RefusedByEngine
from worker.serve.service import WorkerApp

JSON = {"content-type": "application/json"}
FORM = "multipart/form-data; boundary=a"
STREAM = {**HELLO, "stream": True}


async def test_a_query_string_has_no_effect_on_a_chat(http_client: ServeClient) -> None:
    http_client.engine.script = tuple(tokens("Hel", "lo"))
    response = await http_client.post(f"{CHAT}?beta=true", json=HELLO)
    assert response.status_code == 200
    assert response.json()["choices"][0]["message"]["content"] == "Hello"
    assert response.json()["id"] == response.headers["x-request-id"]
    (request,) = http_client.engine.requests
    assert isinstance(request, dict)
    assert request["messages"] == HELLO["messages"]


async def test_an_escaped_question_mark_in_a_path_starts_no_query(http_client: ServeClient) -> None:
    response = await http_client.get("/v1/models/a%3Flimit=1%2541")
    assert "There is no model 'a?limit=1%41'" in error_of(response)["message"]


@pytest.mark.parametrize("value", ["1", "0"])
async def test_a_header_requests_a_receipt(http_client: ServeClient, value: str) -> None:
    http_client.engine.script = tuple(tokens("Hel", "lo"))
    response = await http_client.post(CHAT, json=HELLO, headers={"x-receipt": value})
    assert ("receipt" in response.json()) == (value == "1")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"messages": ', "broken JSON: Expecting value"),
        (b"\xff\xfe\x00", "broken JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[1]", "not a JSON object"),
        (b'{"a": 1, "b": [{"c": 1, "c": 2}]}', "has a key twice"),
        (b'{"a": [-Infinity]}', "-Infinity is not a number"),
        (b'{"a": %b}' % (b"1" * 4301), "more than 4,300 digits"),
    ],
    ids=lambda value: ascii(value)[:30],
)
async def test_a_body_that_is_no_json_object_is_refused(
    http_client: ServeClient, content: bytes, message: str
) -> None:
    response = await http_client.post(CHAT, content=content, headers=JSON)
    assert (response.status_code, http_client.engine.requests) == (400, [])
    assert message in error_of(response)["message"]


@pytest.mark.parametrize(
    ("encoding", "status"),
    [("gzip", 415), ("GZIP, br", 415), ("x" * 9_000, 415), ("Identity", 200)],
    ids=ascii,
)
async def test_a_compressed_body_is_refused_by_its_header(
    http_client: ServeClient, encoding: str, status: int
) -> None:
    content = json.dumps(HELLO).encode()
    content = content if status == 200 else gzip.compress(content)
    headers = {**JSON, "content-encoding": encoding}
    response = await http_client.post(CHAT, content=content, headers=headers)
    upload = await http_client.post(
        "/v1/files", files={"file": ("a", content)}, headers={"content-encoding": encoding}
    )
    assert response.status_code == status
    if status == 415:
        message = error_of(response)["message"]
        assert message == error_of(upload)["message"]
        assert message.startswith(f"The header Content-Encoding is '{encoding[:64]}': send the")
        assert http_client.engine.requests == []


@pytest.mark.parametrize(
    ("media_type", "status"),
    [
        ("Application/JSON; charset=utf-8", 200),
        *(("text/plain", 415), (FORM, 415)),
    ],
)
async def test_a_body_needs_the_media_type_of_json(
    http_client: ServeClient, media_type: str, status: int
) -> None:
    headers = {"content-type": media_type}
    response = await http_client.post(CHAT, content=json.dumps(HELLO), headers=headers)
    assert response.status_code == status
    assert status == 200 or "application/json" in error_of(response)["message"]
    # A missing body is an object without keys.
    assert (await http_client.post(CHAT)).status_code == 200


async def test_the_route_is_checked_before_the_body(http_client: ServeClient) -> None:
    for route, status in {"/v1/audio/transcriptions": 404, "/v1/models": 405}.items():
        response = await http_client.post(route, files={"file": b"RIFF"})
        assert (response.status_code, error_of(response)["code"]) == (status, status)


async def test_anthropics_clients_get_its_format_and_no_files(http_client: ServeClient) -> None:
    headers = {"anthropic-version": "2023-06-01"}
    for method, path in (("GET", "/v1/files"), ("POST", "/v1/files"), ("POST", "/v1/none")):
        response = await http_client.request(method, path, headers=headers)
        assert (response.status_code, response.json()["type"]) == (404, "error")
    assert (await http_client.get("/v1/models", headers=headers)).status_code == 200


async def test_only_a_body_above_the_limit_is_refused(
    engine: ScriptedEngine,
) -> None:
    body = json.dumps({**HELLO, "user": "x" * 1000})
    for size, status in ((len(body) + 1000, 200), (len(body) - 1, 413)):
        async with ServeClient(engine, MAX_INPUT_MB=f"{size / 1e6}") as http_client:
            response = await http_client.post(CHAT, content=body, headers=JSON)
            assert response.status_code == status
    assert "MAX_INPUT_MB" in error_of(response)["message"]


async def test_values_outside_of_json_and_utf8_are_not_sent(http_client: ServeClient) -> None:
    http_client.engine.app = static_app('{"data": [NaN]}')
    response = await http_client.post(CHAT, json=HELLO)
    assert (response.status_code, error_of(response)["type"]) == (500, "InternalServerError")
    http_client.engine.app = static_app('{"text": "a\\ud83d"}')
    response = await http_client.post(CHAT, json=HELLO)
    assert (response.status_code, response.json()) == (200, {"text": "a?"})


async def test_a_method_that_no_route_takes_is_refused(http_client: ServeClient) -> None:
    for method in ("DELETE", "OPTIONS", "TRACE"):
        response = await http_client.request(method, "/v1/models")
        assert (response.status_code, error_of(response)["type"]) == (405, "MethodNotAllowedError")


@pytest.mark.parametrize(
    ("failure", "status", "retry_after"),
    [
        (RefusedByEngine("no such model", status=404), 404, None),
        *((EngineBusy("full"), 503, "1"), (EngineDead(), 503, "1")),
    ],
)
async def test_an_error_of_the_engine_has_its_status_and_retry_after(
    http_client: ServeClient, failure: Exception, status: int, retry_after: str | None
) -> None:
    http_client.engine.script = (failure,)
    for body in (HELLO, STREAM):
        response = await http_client.post(CHAT, json=body)
        assert (response.status_code, response.headers.get("retry-after")) == (status, retry_after)
        assert error_of(response)["retryable"] is bool(retry_after)
        # OpenAI's client does as the header says; otherwise the status decides.
        should_retry = None if retry_after else "false"
        assert response.headers.get("x-should-retry") == should_retry


async def test_a_response_larger_than_a_yield_is_sent_whole(http_client: ServeClient) -> None:
    http_client.engine.script = tuple(tokens("x" * 1_100_000))
    whole = await http_client.post(CHAT, json=HELLO)
    streamed = await http_client.post(CHAT, json=STREAM)
    assert len(whole.json()["choices"][0]["message"]["content"]) == 1_100_000
    assert len("".join(texts_in(events_in(streamed.text)))) == 1_100_000


@pytest.mark.parametrize("body", [HELLO, STREAM])
async def test_a_request_that_outlives_the_grace_period_fails_as_retryable(
    engine: ScriptedEngine, body: dict[str, Any]
) -> None:
    engine.script = (*tokens("a", finish=None), HANG)
    async with serve_http(engine, SHUTDOWN_GRACE_S="0.2") as port:
        client = await port.connect()
        client.send(http_request(json.dumps(body).encode()))
        await poll_until(lambda: bool(engine.active_requests))
        port.server.should_exit = True
        response = await client.read_all()
    assert b"is being stopped. Send the request again." in response
    assert b'"retryable":true' in response.replace(b": ", b":")
    assert (b"503 Service Unavailable" in response) is (body is HELLO)


async def test_a_broken_stream_ends_with_an_error_event(http_client: ServeClient) -> None:
    http_client.engine.script = (*tokens("a", finish=None), EngineBusy("full"))
    response = await http_client.post(CHAT, json=STREAM)
    *_, error, done = events_in(response.text)
    assert (response.status_code, error["error"]["code"], done) == (200, 503, "[DONE]")


@pytest.mark.parametrize("environ", [{"RAW_OPENAI_OUTPUT": "0"}])
async def test_events_are_sent_as_text_even_if_jobs_yield_decoded_events(
    http_client: ServeClient,
) -> None:
    response = await http_client.post(CHAT, json=STREAM)
    assert events_in(response.text)[-1] == "[DONE]"


class ClientRequest:
    """A request, as uvicorn passes it, of a client that reads single messages and disconnects.

    httpx.ASGITransport returns a body only when it is complete.
    """

    def __init__(self, engine: ScriptedEngine, body: dict[str, Any]) -> None:
        self.sent = asyncio.Queue[Any]()
        self._received = asyncio.Queue[Any]()
        self._received.put_nowait({"type": "http.request", "body": json.dumps(body).encode()})
        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": CHAT, "headers": headers}
        service = WorkerApp(engine.engines, settings())
        self.task = asyncio.create_task(service(scope, self._received.get, self.sent.put))

    async def read_message(self) -> Any:
        async with asyncio.timeout(HUNG_S):
            return await self.sent.get()

    async def disconnect(self) -> None:
        self._received.put_nowait({"type": "http.disconnect"})
        async with asyncio.timeout(HUNG_S):
            await self.task


async def test_events_are_sent_as_they_arrive(engine: ScriptedEngine) -> None:
    first_is_read = asyncio.Event()
    engine.script = (*tokens("a", finish=None), first_is_read, *tokens("b"), HANG)
    client_request = ClientRequest(engine, STREAM)
    head = await client_request.read_message()
    assert head["status"] == 200
    assert dict(head["headers"])[b"content-type"].startswith(b"text/event-stream")
    # The response is unfinished, because the script hangs.
    for text in "ab":
        body = (await client_request.read_message())["body"].decode()
        assert texts_in(events_in(body)) == [text]
        engine.loop.call_soon_threadsafe(first_is_read.set)
    await client_request.disconnect()


@pytest.mark.parametrize(("body", "is_cancelled"), [(HELLO, False), (STREAM, False), (HELLO, True)])
async def test_a_disconnect_or_a_cancel_aborts_the_request_to_the_engine(
    engine: ScriptedEngine, body: dict[str, Any], is_cancelled: bool
) -> None:
    engine.script = (*tokens("a"), HANG)
    client_request = ClientRequest(engine, body)
    await poll_until(lambda: len(engine.active_requests) == 1)
    if is_cancelled:
        client_request.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await client_request.task
    else:
        await client_request.disconnect()
    await poll_until(lambda: len(engine.aborted_requests) == 1)
    assert engine.active_requests == []


async def test_a_client_that_disconnects_during_its_body_causes_no_request_to_the_engine(
    engine: ScriptedEngine,
) -> None:
    assert await post_streamed_body(engine, CHAT, disconnect_after(b'{"mess')) == []
    assert engine.requests == []


async def test_a_running_job_does_not_keep_the_body_of_its_request(engine: ScriptedEngine) -> None:
    engine.script = (HANG,)
    # The spaces are not part of the parsed body.
    size = 5_000_000
    request = http_request(json.dumps(HELLO).encode().ljust(size))
    async with serve_http(engine) as port:
        client = await port.connect()
        tracemalloc.start()
        try:
            client.send(request)
            await poll_until(lambda: bool(engine.active_requests))
            kept, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert kept < size / 2 < size < peak
