"""Calls of an ASGI app in this process."""

import asyncio
import gc
import weakref
from contextlib import aclosing
from typing import Any

import pytest
from starlette.types import Message
from support.processes.background import poll_until

from worker.asgi import Request, ResponseHead, call_app

POST = Request("POST", "/v1/completions", b'{"prompt": "Hi"}', "job-1")
HEAD = ResponseHead(200, "application/json")
DISCONNECT = {"type": "http.disconnect"}


def start(status: int = 200, *headers: tuple[bytes, bytes]) -> Message:
    headers = headers or ((b"Content-Type", b"application/json"),)
    return {"type": "http.response.start", "status": status, "headers": headers}


def body(part: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": part, "more_body": more}


class App:
    """An app that sends messages, then may wait for further messages of the client, or fail."""

    def __init__(self, *messages: Message, linger: int = 0, fail: bool = False) -> None:
        self._messages = messages
        self._linger = linger
        self._fail = fail
        self.scope: Message = {}
        self.received: list[Message] = []
        self.ended: str | None = None

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        self.scope = scope
        try:
            self.received.append(await receive())
            for message in self._messages:
                await send(message)
            for _ in range(self._linger):
                self.received.append(await receive())
                await asyncio.sleep(0)  # a cancel would arrive here
            self.ended = "returned"
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise
        if self._fail:
            raise LookupError("the app's own")


@pytest.mark.parametrize(("pauses", "yielded"), [(0, [b"a", b"b", b"c"]), (5, [b"a", b"c"])])
async def test_a_part_that_is_taken_is_not_yielded_unless_an_earlier_one_waits(
    pauses: int, yielded: list[bytes]
) -> None:
    taken: list[bytes] = []

    async def app(_scope: Message, _receive: Any, send: Any) -> None:
        await send(start())
        for part in (b"a", b"b", b"c"):
            for _turn in range(pauses):
                await asyncio.sleep(0)
            await send(body(part))

    def take_part(part: bytes, is_next: bool) -> bool:
        if takes := is_next and part == b"b":
            taken.append(part)
        return takes

    parts = [part async for part in call_app(app, POST, take_part=take_part)]
    assert parts == [HEAD, *yielded]
    assert taken == [part for part in (b"a", b"b", b"c") if part not in yielded]


async def read_response(app: Any) -> list[ResponseHead | bytes]:
    return [part async for part in call_app(app, POST)]


async def leave(app: Any, *, cancelled: bool = False) -> None:
    """Read one part of a response, then leave as a client would."""
    parts = call_app(app, POST)
    await anext(parts)
    if cancelled:
        reading = asyncio.ensure_future(anext(parts))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    else:
        await parts.aclose()


async def test_the_head_comes_first_and_then_the_body_without_empty_parts() -> None:
    app = App(start(404), body(b'{"a":'), body(b""), body(b"1}"), body(b"", more=False))
    assert await read_response(app) == [ResponseHead(404, "application/json"), b'{"a":', b"1}"]


@pytest.mark.parametrize(
    ("header", "media_type"),
    [
        ((b"content-type", b"text/event-stream; charset=utf-8"), "text/event-stream"),
        ((b"CONTENT-TYPE", b"text/plain"), "text/plain"),
        ((b"content-length", b"0"), ""),
    ],
)
async def test_the_media_type_has_no_parameters(
    header: tuple[bytes, bytes], media_type: str
) -> None:
    assert await read_response(App(start(200, header))) == [ResponseHead(200, media_type)]


async def test_the_app_receives_the_request_that_a_client_would_send() -> None:
    app = App(start())
    await read_response(app)
    assert app.received == [{"type": "http.request", "body": POST.body, "more_body": False}]
    expected = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "raw_path": b"/v1/completions",
        "query_string": b"",
        "root_path": "",
    }
    assert {key: app.scope[key] for key in expected} == expected
    assert dict(app.scope["headers"]) == {
        b"host": b"worker",
        b"content-type": b"application/json",
        b"content-length": b"16",
        b"x-request-id": b"job-1",
    }


async def test_the_caller_can_read_the_state_that_the_app_sets() -> None:
    async def app(scope: Message, receive: Any, send: Any) -> None:
        scope["state"]["note"] = scope["path"]
        await App(start())(scope, receive, send)

    state: dict[str, Any] = {}
    assert [part async for part in call_app(app, POST, state)]
    assert state == {"note": POST.path}
    assert POST.scope["state"] == {}


async def test_parts_are_yielded_as_soon_as_they_are_sent() -> None:
    sent = asyncio.Event()

    async def app(_: Message, __: Any, send: Any) -> None:
        await send(start())
        await send(body(b"first"))
        await sent.wait()
        await send(body(b"second", more=False))

    async with asyncio.timeout(60), aclosing(call_app(app, POST)) as parts:
        assert [await anext(parts), await anext(parts)] == [HEAD, b"first"]
        sent.set()
        assert [part async for part in parts] == [b"second"]


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_client_that_leaves_disconnects_the_app_without_cancelling_it(
    cancelled: bool,
) -> None:
    app = App(start(), linger=1)
    await leave(app, cancelled=cancelled)
    gc.collect(1)  # nothing else refers to the app's task
    await poll_until(lambda: app.ended is not None)
    assert (app.ended, app.received[1:]) == ("returned", [DISCONNECT])


async def test_every_receive_after_the_client_left_returns_a_disconnect() -> None:
    app = App(start(), linger=2)
    parts = call_app(app, POST)
    await anext(parts)
    await asyncio.sleep(0)
    assert len(app.received) == 1
    await parts.aclose()
    await poll_until(lambda: app.ended is not None)
    assert app.received[1:] == [DISCONNECT] * 2


async def test_an_app_that_cleans_up_after_its_client_left_is_not_garbage_collected() -> None:
    cleanup_events: list[weakref.ref[asyncio.Event]] = []
    cleanup_done = asyncio.Event()

    async def app(scope: Message, receive: Any, send: Any) -> None:
        await App(start(), linger=1)(scope, receive, send)
        unreferenced = asyncio.Event()
        cleanup_events.append(weakref.ref(unreferenced))
        await unreferenced.wait()
        cleanup_done.set()

    await leave(app)
    await poll_until(lambda: cleanup_events)
    gc.collect(1)
    event = cleanup_events[0]()
    assert event is not None
    event.set()
    await poll_until(cleanup_done.is_set)


async def test_an_error_of_the_app_is_raised_after_the_parts_that_it_sent() -> None:
    parts = call_app(App(start(500), body(b"half"), fail=True), POST)
    assert [await anext(parts), await anext(parts)] == [
        ResponseHead(500, "application/json"),
        b"half",
    ]
    with pytest.raises(LookupError, match="the app's own"):
        await anext(parts)


async def test_an_error_after_the_client_left_is_ignored() -> None:
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    app = App(start(), linger=1, fail=True)
    await leave(app)
    await poll_until(lambda: app.ended is not None and len(asyncio.all_tasks()) == 1)
    gc.collect(1)  # asyncio logs a failure that was not retrieved when its task is collected
    assert reported == []
