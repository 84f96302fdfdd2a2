"""Calls of an ASGI app in this process."""

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest
from starlette.types import Message
from support.engine.scripted import until

from worker.asgi import Head, Request, call

POST = Request("POST", "/v1/completions", b'{"prompt": "Hi"}', "job-1")


def start(status: int = 200, media_type: bytes = b"application/json") -> Message:
    headers = [(b"Content-Type", media_type)]
    return {"type": "http.response.start", "status": status, "headers": headers}


def body(part: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": part, "more_body": more}


class App:
    """Answers a call by its messages, then may wait for what comes after the request."""

    def __init__(self, *messages: Message, linger: bool = False) -> None:
        self._messages = messages
        self._linger = linger
        self.scope: Message = {}
        self.received: list[Message] = []
        self.ended: str | None = None

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        self.scope = scope
        try:
            self.received.append(await receive())
            for message in self._messages:
                await send(message)
            if self._linger:
                self.received.append(await receive())
                await asyncio.sleep(0)  # a cancel would arrive here
            self.ended = "returned"
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise


async def answer(app: Any, request: Request = POST) -> list[Head | bytes]:
    return [part async for part in call(app, request)]


async def test_the_head_comes_first_and_then_the_body() -> None:
    app = App(start(404), body(b'{"a":', more=True), body(b"1}", more=False))
    assert await answer(app) == [Head(404, "application/json"), b'{"a":', b"1}"]


@pytest.mark.parametrize(
    ("headers", "media_type"),
    [
        ([(b"content-type", b"text/event-stream; charset=utf-8")], "text/event-stream"),
        ([(b"CONTENT-TYPE", b"text/plain")], "text/plain"),
        ([(b"content-length", b"0")], ""),
    ],
)
async def test_the_media_type_has_no_parameters(
    headers: list[tuple[bytes, bytes]], media_type: str
) -> None:
    message = {"type": "http.response.start", "status": 200, "headers": headers}
    assert await answer(App(message)) == [Head(200, media_type)]


async def test_empty_parts_are_left_out() -> None:
    app = App(start(), body(b""), body(b"x"), body(b"", more=False))
    assert await answer(app) == [Head(200, "application/json"), b"x"]


async def test_the_app_is_asked_as_by_a_client() -> None:
    app = App(start())
    await answer(app)
    assert app.received == [{"type": "http.request", "body": POST.body, "more_body": False}]
    scope = app.scope
    assert (scope["type"], scope["method"], scope["path"], scope["raw_path"]) == (
        "http",
        "POST",
        "/v1/completions",
        b"/v1/completions",
    )
    assert dict(scope["headers"]) == {
        b"host": b"worker",
        b"content-type": b"application/json",
        b"content-length": b"16",
        b"x-request-id": b"job-1",
    }
    assert (scope["query_string"], scope["root_path"]) == (b"", "")


async def test_every_call_has_a_scope_of_its_own() -> None:
    assert POST.scope is not POST.scope
    assert POST.scope["state"] is not POST.scope["state"]


async def test_what_the_app_notes_of_a_call_is_the_callers_to_read() -> None:
    async def app(scope: Message, receive: Any, send: Any) -> None:
        scope["state"]["note"] = scope["path"]
        await App(start(), body(b"1"))(scope, receive, send)

    state: dict[str, Any] = {}
    assert [part async for part in call(app, POST, state)]
    assert state == {"note": POST.path}
    assert POST.scope["state"] == {}


async def test_parts_come_as_they_are_sent() -> None:
    sent = asyncio.Event()

    async def app(_: Message, __: Any, send: Any) -> None:
        await send(start())
        await send(body(b"first"))
        await sent.wait()
        await send(body(b"second", more=False))

    async with asyncio.timeout(60), aclosing(call(app, POST)) as parts:
        assert [await anext(parts), await anext(parts)] == [Head(200, "application/json"), b"first"]
        sent.set()
        assert [part async for part in parts] == [b"second"]


async def test_receive_waits_after_the_body_until_the_client_leaves() -> None:
    app = App(start(), linger=True)
    parts = call(app, POST)
    await anext(parts)
    await asyncio.sleep(0.02)
    assert len(app.received) == 1
    await parts.aclose()
    assert await until(lambda: app.ended is not None)
    assert app.received[1] == {"type": "http.disconnect"}


async def left_with(app: App, how: str) -> None:
    """Disconnect in the middle of an answer."""
    parts = call(app, POST)
    await anext(parts)
    if how == "closed":
        await parts.aclose()
        return
    reading = asyncio.ensure_future(anext(parts))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


@pytest.mark.parametrize("how", ["closed", "cancelled"])
async def test_leaving_sends_the_app_a_disconnect_and_does_not_cancel_it(how: str) -> None:
    app = App(start(), linger=True)
    await left_with(app, how)
    gc.collect()  # nothing else refers to the app's task
    assert await until(lambda: app.ended is not None)
    assert (app.ended, app.received[1:]) == ("returned", [{"type": "http.disconnect"}])


async def test_an_app_that_cleans_up_after_its_client_left_is_kept_alive() -> None:
    cleaning: list[weakref.ref[asyncio.Event]] = []
    cleaned = asyncio.Event()

    async def app(_: Message, receive: Any, send: Any) -> None:
        await receive()
        await send(start())
        await receive()
        nothing_else_knows = asyncio.Event()
        cleaning.append(weakref.ref(nothing_else_knows))
        await nothing_else_knows.wait()
        cleaned.set()

    parts = call(app, POST)
    await anext(parts)
    await parts.aclose()
    del parts
    assert await until(lambda: bool(cleaning))
    gc.collect()
    event = cleaning[0]()
    assert event is not None
    event.set()
    async with asyncio.timeout(60):
        await cleaned.wait()


async def test_a_disconnect_is_received_as_often_as_it_is_asked_for() -> None:
    received: list[Message] = []

    async def app(_: Message, receive: Any, send: Any) -> None:
        await receive()
        await send(start())
        received.extend([await receive(), await receive()])

    parts = call(app, POST)
    await anext(parts)
    await parts.aclose()
    assert await until(lambda: len(received) == 2)
    assert received == [{"type": "http.disconnect"}] * 2


def failing(*messages: Message, linger: bool = False) -> Any:
    async def app(_: Message, receive: Any, send: Any) -> None:
        await receive()
        for message in messages:
            await send(message)
        if linger:
            await receive()
        raise LookupError("the app's own")

    return app


async def read_into(read: list[Head | bytes], parts: AsyncGenerator[Head | bytes, None]) -> None:
    async for part in parts:
        read.append(part)  # noqa: PERF401 - a comprehension would lose what came before a failure


async def test_a_failure_of_the_app_reaches_the_caller() -> None:
    with pytest.raises(LookupError, match="the app's own"):
        await answer(failing())


async def test_a_failure_comes_after_what_was_sent_before_it() -> None:
    read: list[Head | bytes] = []
    with pytest.raises(LookupError, match="the app's own"):
        await read_into(read, call(failing(start(500), body(b"half")), POST))
    assert read == [Head(500, "application/json"), b"half"]


async def test_a_failure_after_the_client_left_is_dropped() -> None:
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    parts = call(failing(start(), linger=True), POST)
    await anext(parts)
    await parts.aclose()
    await asyncio.sleep(0.02)
    gc.collect()  # asyncio logs a failure that was not retrieved when its task is collected
    assert reported == []
