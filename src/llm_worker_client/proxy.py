"""The proxy: a server on this machine with all routes of a deployed endpoint (an ASGI app)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import anyio
from starlette.requests import ClientDisconnect
from starlette.requests import Request as Incoming
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from llm_worker_client import callers
from llm_worker_client.endpoint import AsyncEndpoint
from llm_worker_client.mapping import Refusal, Request, dialect_of, responses
from llm_worker_client.mapping.forms import aread
from llm_worker_client.steps import Unreachable

# Bytes of a body that are read, unless it is a file that goes to the volume.
LARGEST_BODY = 64_000_000
# Seconds between two looks at a connection.
LOOK_S = 20.0


class Proxy:
    """Answers every request by a job of an endpoint.

    Args:
        endpoint: with the account's key.
        key: that callers have to send; None: any program of this machine may call.
    """

    def __init__(self, endpoint: AsyncEndpoint, key: str | None = None) -> None:
        self._endpoint = endpoint
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        incoming = Incoming(scope, receive)
        bare = Request(incoming.method, _target(scope), dict(incoming.headers))
        try:
            callers.check(incoming.headers, self._key)
            request = await self._read(bare, incoming.stream())
        except ClientDisconnect:
            return
        except Refusal as refusal:
            head, body = responses.refused(refusal, dialect_of(bare, self._endpoint.id))
            await Response(body, head.status, head.headers)(scope, receive, send)
            return
        with request.form or nullcontext():
            async with anyio.create_task_group() as group:
                group.start_soon(_cancel_on_disconnect, receive, group.cancel_scope)
                await self._answer(request, send)
                group.cancel_scope.cancel()

    async def _read(self, request: Request, parts: AsyncIterator[bytes]) -> Request:
        """Return a request with its body.

        Raises:
            Refusal: it is too large, or a broken form.
        """
        if not request.is_form:
            parts = _bounded(parts, f"The body has more than {LARGEST_BODY:,} bytes.")
            return replace(request, body=b"".join([part async for part in parts]))
        if missing := await asyncio.to_thread(self._endpoint.shelf.missing):
            parts = _bounded(parts, f"The upload has more than {LARGEST_BODY:,} bytes. {missing}")
        return replace(request, form=await aread(request.header("content-type"), parts))

    async def _answer(self, request: Request, send: Send) -> None:
        answer = await self._endpoint.answer(request)
        response = StreamingResponse(answer.parts(), answer.head.status, answer.head.headers)
        try:
            # Not the response as an app, which would also wait for the caller to leave.
            await response.stream_response(send)
        except Unreachable:
            # The server breaks the connection off: the body is not whole.
            return
        finally:
            answer.leave()

    async def _live(self, receive: Receive, send: Send) -> None:
        """Answer the server's lifespan messages; close the endpoint at the end."""
        while (await receive())["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        await self._endpoint.aclose()
        await send({"type": "lifespan.shutdown.complete"})


async def _bounded(parts: AsyncIterator[bytes], message: str) -> AsyncIterator[bytes]:
    """Pass on the parts of a body.

    Raises:
        Refusal: it is too large, with this message.
    """
    size = 0
    async for part in parts:
        size += len(part)
        if size > LARGEST_BODY:
            raise Refusal(413, message)
        yield part


def _target(scope: Scope) -> str:
    path, query = scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


async def _cancel_on_disconnect(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


class ProxyConnection(H11Protocol):
    """A connection that ends when its client sends no request, where uvicorn would wait for ever.

    It ends at the second look that finds no request begun since the first, and none that runs: so
    does one whose client leaves the end of an answer unread.
    """

    _looking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._look_again()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._looking is not None:
            self._looking.cancel()

    def _look(self, waited: bool, last: object) -> None:
        if waited and self._waits() and self.cycle is last:
            self.transport.abort()
        else:
            self._look_again()

    def _look_again(self) -> None:
        self._looking = self.loop.call_later(LOOK_S, self._look, self._waits(), self.cycle)

    def _waits(self) -> bool:
        return self.cycle is None or self.cycle.response_complete


# Options of uvicorn.
SERVED: dict[str, Any] = {
    "http": ProxyConnection,
    # Bytes of a request's line and headers together.
    "h11_max_incomplete_event_size": 32_768,
    # Connections at once. With those to the platform they are less than a process may have open.
    "limit_concurrency": 500,
    # Seconds that running requests have to end after a signal to stop.
    "timeout_graceful_shutdown": 5,
    "access_log": False,
    "lifespan": "on",
    "server_header": False,
    "ws": "none",
}
