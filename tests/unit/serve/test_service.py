"""The OpenAI path over HTTP: requests, responses, and clients that disconnect."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from support.engine.scripted import (
    CHAT,
    HANG,
    ScriptedEngine,
    events_in,
    replying,
    settings,
    texts_in,
    tokens,
    until,
)
from support.served import client, error_of

from worker.errors import EngineBusy, EngineDead, RefusedByEngine
from worker.serve.running import server
from worker.serve.service import Service

HELLO = {"messages": [{"role": "user", "content": "Hi"}]}
KEY = {"SERVE_API_KEY": "sk-right"}


async def ask(engine: ScriptedEngine, path: str = CHAT, body: Any = HELLO) -> httpx.Response:
    async with client(engine) as http:
        return await http.post(path, json=body)


async def test_an_answer_is_the_body_of_the_response() -> None:
    with ScriptedEngine(*tokens("Hel", "lo")) as engine:
        response = await ask(engine)
    assert response.status_code == 200
    assert response.json()["choices"][0]["message"]["content"] == "Hello"
    assert response.json()["id"] == response.headers["x-request-id"]
    (asked,) = engine.asked
    assert isinstance(asked, dict)
    assert asked["messages"] == HELLO["messages"]


async def test_a_query_string_changes_nothing() -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        assert (await ask(engine, f"{CHAT}?beta=true")).status_code == 200


async def test_a_get_is_answered_and_so_is_the_head_of_it() -> None:
    with ScriptedEngine() as engine:
        async with client(engine) as http:
            assert (await http.get("/v1/models")).json()["object"] == "list"
            assert (await http.head("/v1/models")).status_code == 200


async def test_a_path_is_the_route_with_its_escapes_decoded() -> None:
    with ScriptedEngine() as engine:
        async with client(engine) as http:
            response = await http.get("/v1/no%20such/route%2Fhere")
    assert response.status_code == 404
    assert "/v1/no such/route/here" in error_of(response)["message"]


@pytest.mark.parametrize(
    ("content", "media_type", "status", "message"),
    [
        (b'{"messages": ', "application/json", 400, "broken JSON: Expecting value"),
        (b"\xff\xfe\x00", "application/json", 400, "broken JSON"),
        (b"[" * 100_000, "application/json", 400, "nested too deeply"),
        (b"[1]", "application/json", 400, "not a JSON object"),
        (b'{"a": 1, "b": [{"c": 1, "c": 2}]}', "application/json", 400, "has a key twice"),
        (b'{"a": NaN}', "application/json", 400, "NaN is no number"),
        (b'{"a": [-Infinity]}', "application/json", 400, "-Infinity is no number"),
        (b'{"a": %b}' % (b"1" * 4301), "application/json", 400, "more than 4,300 digits"),
        (b"{}", "text/plain", 415, "application/json"),
        (b"a=1", "application/x-www-form-urlencoded", 415, "application/json"),
    ],
)
async def test_a_body_that_no_route_takes_is_refused(
    content: bytes, media_type: str, status: int, message: str
) -> None:
    with ScriptedEngine() as engine:
        async with client(engine) as http:
            headers = {"content-type": media_type}
            response = await http.post(CHAT, content=content, headers=headers)
    assert response.status_code == status
    assert message in error_of(response)["message"]
    assert engine.asked == []


async def test_a_media_type_may_have_parameters() -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        async with client(engine) as http:
            headers = {"content-type": "Application/JSON; charset=utf-8"}
            response = await http.post(CHAT, content=json.dumps(HELLO), headers=headers)
    assert response.status_code == 200


async def test_a_body_above_the_limit_is_refused_and_one_below_it_is_not() -> None:
    body = json.dumps({**HELLO, "user": "x" * 1000})
    headers = {"content-type": "application/json"}
    with ScriptedEngine(*tokens("a")) as engine:
        for more, status in ((1000, 200), (-1, 413)):
            limit = {"MAX_INPUT_MB": f"{(len(body) + more) / 1e6}"}
            async with client(engine, **limit) as http:
                response = await http.post(CHAT, content=body, headers=headers)
                assert response.status_code == status
    assert error_of(response)["type"] == "RequestEntityTooLargeError"
    assert "MAX_INPUT_MB" in error_of(response)["message"]


async def test_an_answer_that_json_has_no_number_for_is_an_internal_error() -> None:
    with ScriptedEngine(app=replying('{"data": [NaN]}')) as engine:
        response = await ask(engine)
    assert response.status_code == 500
    assert error_of(response)["type"] == "InternalServerError"


async def test_half_of_a_surrogate_pair_is_answered_as_a_question_mark() -> None:
    with ScriptedEngine(app=replying('{"text": "a\\ud83d"}')) as engine:
        response = await ask(engine)
    assert (response.status_code, response.json()) == (200, {"text": "a?"})


async def test_a_method_that_no_route_takes_is_refused() -> None:
    with ScriptedEngine() as engine:
        async with client(engine) as http:
            response = await http.delete("/v1/models")
    assert response.status_code == 405
    assert error_of(response)["type"] == "MethodNotAllowedError"


async def test_a_refusal_keeps_the_status_that_vllms_server_gave_it() -> None:
    refusal = RefusedByEngine("no such model", status=404, param="model")
    with ScriptedEngine(refusal) as engine:
        response = await ask(engine)
    assert response.status_code == 404
    assert error_of(response)["param"] == "model"
    assert "retry-after" not in response.headers


@pytest.mark.parametrize("failure", [EngineBusy("full"), EngineDead()])
async def test_a_retryable_refusal_says_when_to_try_again(failure: Exception) -> None:
    with ScriptedEngine(failure) as engine:
        response = await ask(engine)
    assert response.status_code == 503
    assert error_of(response)["retryable"]
    assert response.headers["retry-after"] == "1"


async def test_an_answer_above_the_limit_of_a_yield_is_answered_whole() -> None:
    with ScriptedEngine(*tokens("x" * 1_100_000)) as engine:
        whole = await ask(engine)
        streamed = await ask(engine, body={**HELLO, "stream": True})
    assert len(whole.content) > 1_000_000
    assert whole.status_code == 200
    assert len("".join(texts_in(events_in(streamed.text)))) == 1_100_000


# Called as by uvicorn: httpx.ASGITransport returns a body only when it is complete.


class Call:
    """One request of a client that can look at what has come, and leave."""

    def __init__(self, engine: ScriptedEngine, body: dict[str, Any]) -> None:
        self.sent: asyncio.Queue[Any] = asyncio.Queue()
        self._left = asyncio.Event()
        self._body: bytes | None = json.dumps(body).encode()
        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": CHAT, "headers": headers}
        service = Service(engine.engines, settings())
        self.task = asyncio.create_task(service(scope, self._receive, self.sent.put))

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def message(self) -> Any:
        async with asyncio.timeout(60):
            return await self.sent.get()

    async def leave(self) -> None:
        self._left.set()
        async with asyncio.timeout(60):
            await self.task


async def test_a_stream_is_sent_event_by_event_as_it_comes() -> None:
    with ScriptedEngine(*tokens("a", "b"), HANG) as engine:
        call = Call(engine, {**HELLO, "stream": True})
        head = await call.message()
        assert head["status"] == 200
        assert dict(head["headers"])[b"content-type"].startswith(b"text/event-stream")
        # The answer has not ended: its script hangs.
        events = [events_in((await call.message())["body"].decode()) for _ in "ab"]
        assert [texts_in(event) for event in events] == [["a"], ["b"]]
        await call.leave()


async def test_a_stream_that_breaks_ends_with_an_error_event() -> None:
    with ScriptedEngine(*tokens("a", finish=None), EngineBusy("full")) as engine:
        response = await ask(engine, body={**HELLO, "stream": True})
    assert response.status_code == 200
    *_, error, done = events_in(response.text)
    assert error["error"]["code"] == 503
    assert done == "[DONE]"


async def test_a_stream_that_fails_before_it_begins_has_the_status_of_its_error() -> None:
    with ScriptedEngine(RefusedByEngine("no", status=400)) as engine:
        response = await ask(engine, body={**HELLO, "stream": True})
    assert response.status_code == 400


async def test_events_stay_text_where_the_queue_has_them_decoded() -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        async with client(engine, RAW_OPENAI_OUTPUT="0") as http:
            response = await http.post(CHAT, json={**HELLO, "stream": True})
    assert events_in(response.text)[-1] == "[DONE]"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_place_in_the_engine(stream: bool) -> None:
    with ScriptedEngine(*tokens("a"), HANG) as engine:
        call = Call(engine, {**HELLO, "stream": stream})
        assert await until(lambda: len(engine.generating) == 1)
        await call.leave()
        assert await until(lambda: len(engine.aborted) == 1)
        assert engine.generating == []


async def test_a_request_that_the_server_gives_up_frees_its_place_in_the_engine() -> None:
    with ScriptedEngine(HANG) as engine:
        call = Call(engine, HELLO)
        assert await until(lambda: len(engine.generating) == 1)
        call.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call.task
        assert await until(lambda: len(engine.aborted) == 1)


async def test_a_client_that_leaves_before_its_body_is_whole_asks_nothing() -> None:
    with ScriptedEngine() as engine:
        parts = [{"type": "http.request", "body": b'{"mess', "more_body": True}]
        sent: list[Any] = []

        async def receive() -> Any:
            return parts.pop() if parts else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": CHAT, "headers": []}
        await Service(engine.engines, settings())(scope, receive, send)
        assert sent == []
        assert engine.asked == []


@pytest.mark.parametrize(
    ("host", "environ", "warns"),
    [("127.0.0.1", {}, False), ("0.0.0.0", {}, True), ("0.0.0.0", KEY, False)],
)
def test_listening_beyond_this_machine_without_a_key_warns(
    host: str, environ: dict[str, str], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server(ScriptedEngine().engines, settings(**environ), host, 8000)
    assert ("SERVE_API_KEY" in caplog.text) is warns
