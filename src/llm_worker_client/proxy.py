"""The proxy: an ASGI app that serves all routes of a deployed endpoint on this machine."""

import asyncio
import base64
import secrets
from collections.abc import AsyncIterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import anyio
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from llm_worker_client import account
from llm_worker_client.endpoint import AsyncEndpoint
from llm_worker_client.mapping import responses
from llm_worker_client.mapping.forms import MAX_FILE_BYTES, aparse_form
from llm_worker_client.mapping.requests import Request, find_dialect, is_upload, takes_body
from llm_worker_client.mapping.responses import Refusal
from llm_worker_client.steps import PlatformUnreachable
from llm_worker_client.wire import LargeReplies
from llm_worker_console import make_page
from llm_worker_console.web_pages import PageRefusal, find_page_refusal

# Maximum bytes of a body. A form may be larger if a volume is configured for its file.
MAX_BODY_BYTES = 64_000_000
# Maximum bytes of all bodies in memory: the bodies of all connections, if they have 1 MB each.
MAX_BODIES_BYTES = 512_000_000
# Maximum bytes of a body that is accepted even if all bodies together have the maximum.
SMALL_BODY_BYTES = 65_536
# Seconds in which a caller has to send each further WINDOW_BYTES of a body.
BODY_WINDOW_S = 30.0
WINDOW_BYTES = 300_000
# Bytes of a response that are sent at a time.
SEND_BYTES = 65_536
# Seconds between two checks whether a client does something; the second one closes the connection.
IDLE_CHECK_S = 20.0
_REMEDY = (
    "To serve other names and pages, set PROXY_API_KEY and another --host than "
    f"{account.LOOPBACK[0]}."
)
_PAGE_REFUSALS = {
    PageRefusal.FOREIGN_HOST: f"The Host header does not name this machine. {_REMEDY}",
    PageRefusal.FOREIGN_PAGE: f"Web pages may not call this proxy. {_REMEDY}",
}


class Proxy:
    """Answers requests by running jobs on an endpoint or by forwarding them to the platform's API.

    ``caller_key`` is None if any program on this machine may call. Web
    pages of other sites are refused unless it ``serves_network``: other machines call it by names
    that it can't know.
    """

    def __init__(
        self,
        endpoint: AsyncEndpoint,
        caller_key: str | None = None,
        *,
        serves_network: bool = False,
    ) -> None:
        self._endpoint = endpoint
        self._caller_key = caller_key
        self._serves_network = serves_network
        page = make_page(
            "proxy", needs_key=caller_key is not None, endpoint_path=f"/v2/{endpoint.id}"
        )
        self._console = Response(page.body, headers=page.headers)
        self._bodies = BodyTotal()
        endpoint.large_replies = LargeReplies()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            # The server is shutting down.
            await self._endpoint.aclose()
            await send({"type": "lifespan.shutdown.complete"})
            return
        incoming = StarletteRequest(scope, receive)
        path, query = scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1")
        target = f"{path}?{query}" if query else path
        request_head = Request(incoming.method, target, dict(incoming.headers))
        body = ReceivedBody(incoming.stream(), self._bodies)
        try:
            if not self._serves_network:
                refuse_web_pages(incoming.headers)
            # The console's page needs no key, but the requests that it sends do.
            if (incoming.method, target) == ("GET", "/"):
                await self._console(scope, receive, send)
                return
            if self._caller_key is not None:
                check_key(incoming.headers, self._caller_key)
            request = await self._read_body(request_head, body)
            with request.form or nullcontext():
                async with anyio.create_task_group() as group:
                    group.start_soon(_cancel_on_disconnect, receive, group.cancel_scope)
                    await self._answer_request(request, send)
                    group.cancel_scope.cancel()
        except ClientDisconnect:
            return
        except Refusal as refusal:
            dialect = find_dialect(request_head, self._endpoint.id)
            head, content = responses.error_response(refusal, dialect)
            await Response(content, head.status, head.headers)(scope, receive, send)
        finally:
            body.release()

    async def _read_body(self, request: Request, body: "ReceivedBody") -> Request:
        if not takes_body(request, self._endpoint.id):
            return request
        if (encoding := request.header("content-encoding").strip()).lower() not in ("", "identity"):
            text = f"The header Content-Encoding is {encoding[:64]!r}"
            raise Refusal(415, f"{text}: send the body uncompressed, without this header.")
        if not is_upload(request, self._endpoint.id):
            parts = body.read_parts(f"The body has more than {MAX_BODY_BYTES:,} bytes.")
            return replace(request, body=b"".join([part async for part in parts]))
        missing = await asyncio.to_thread(self._endpoint.lazy_volume.configuration_error)
        message = f"The upload has more than {MAX_BODY_BYTES:,} bytes. {missing}"
        # A larger file is on the disk.
        parts = body.read_parts(message if missing else None, max_in_memory=MAX_FILE_BYTES)
        return replace(request, form=await aparse_form(request.header("content-type"), parts))

    async def _answer_request(self, request: Request, send: Send) -> None:
        answer = await self._endpoint.answer_request(request)
        parts = _split_parts(answer.body_parts())
        response = StreamingResponse(parts, answer.head.status, answer.head.headers)
        try:
            # Calling the response as an ASGI app would also wait for the caller to disconnect.
            await response.stream_response(send)
        except PlatformUnreachable:
            # The server now closes the connection because the body is incomplete.
            return
        finally:
            answer.abandon()


def refuse_web_pages(headers: Headers) -> None:
    if refusal := find_page_refusal(headers):
        raise Refusal(403, _PAGE_REFUSALS[refusal])


def check_key(headers: Headers, key: str) -> None:
    """Check that a request has the proxy's key: as Bearer token, x-api-key or user of Basic."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    sent = [headers.get("x-api-key", "").encode("latin-1")]
    if scheme.lower() == "bearer":
        sent.append(token.encode("latin-1"))
    elif scheme.lower() == "basic":
        with suppress(ValueError):
            sent.append(base64.b64decode(token, validate=True).partition(b":")[0])
    if not any(secrets.compare_digest(each, key.encode()) for each in sent):
        raise Refusal(401, "The API key of this proxy is missing or wrong.")


@dataclass
class BodyTotal:
    """The bytes of all bodies in memory."""

    size: int = 0


class ReceivedBody:
    """The body of a request, which counts as in memory until it is released."""

    def __init__(self, parts: AsyncIterator[bytes], total: BodyTotal) -> None:
        self._parts = parts
        self._total = total
        self._in_memory = 0

    async def read_parts(
        self, message: str | None, max_in_memory: int = MAX_BODY_BYTES
    ) -> AsyncIterator[bytes]:
        """Yield the parts of the body, and have at most ``max_in_memory`` bytes of it in memory.

        A body of more than ``MAX_BODY_BYTES`` is refused with ``message``, unless that is None.
        """
        size, window_end, deadline = 0, 0, 0.0
        while True:
            if size >= window_end:
                window_end = size + WINDOW_BYTES
                deadline = asyncio.get_running_loop().time() + BODY_WINDOW_S
            try:
                async with asyncio.timeout_at(deadline):
                    part = await anext(self._parts, None)
            except TimeoutError:
                rate = f"{WINDOW_BYTES:,} bytes in {BODY_WINDOW_S:g} s"
                raise Refusal(408, f"The body came slower than {rate}.") from None
            if part is None:
                return
            size += len(part)
            if message is not None and size > MAX_BODY_BYTES:
                raise Refusal(413, message)
            last_in_memory, self._in_memory = self._in_memory, min(size, max_in_memory)
            self._total.size += self._in_memory - last_in_memory
            if self._total.size > MAX_BODIES_BYTES and self._in_memory > SMALL_BODY_BYTES:
                text = "The proxy has too many large requests at the moment: send it again."
                raise Refusal(503, text, None, 1.0)
            yield part

    def release(self) -> None:
        self._total.size -= self._in_memory
        self._in_memory = 0


async def _split_parts(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield small parts: the server waits after each until its client has read the last ones."""
    async for part in parts:
        for start in range(0, len(part), SEND_BYTES):
            yield part[start : start + SEND_BYTES]
        # While the next part is fetched, this one is not in memory.
        del part


async def _cancel_on_disconnect(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


class ProxyConnection(H11Protocol):
    """A connection that is closed if its client is idle; uvicorn would wait forever.

    It is closed at the second consecutive check that finds the client due to send the same request,
    or to read the same part of a response.
    """

    _check_timer: asyncio.TimerHandle | None = None
    # Number of times that unread bytes have filled the buffer.
    _pause_count = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn narrows the type, too
        super().connection_made(transport)
        self._schedule_idle_check()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._check_timer is not None:
            self._check_timer.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._pause_count += 1

    def _close_if_idle(self, last_due: object) -> None:
        if last_due is not None and last_due == self._due():
            self.transport.abort()
        else:
            self._schedule_idle_check()

    def _schedule_idle_check(self) -> None:
        self._check_timer = self.loop.call_later(IDLE_CHECK_S, self._close_if_idle, self._due())

    def _due(self) -> tuple[object, ...] | None:
        """Return an identification of the client's next action; None if the proxy is to act."""
        if self.cycle is None or self.cycle.response_complete:
            return ("request", self.cycle)
        return ("read", self._pause_count) if self.flow.write_paused else None


# Options for uvicorn.
UVICORN_OPTIONS: dict[str, Any] = {
    "http": ProxyConnection,
    # uvloop would read megabytes ahead, from each connection that waits for its turn.
    "loop": "asyncio",
    # Maximum bytes of a request line and its headers together.
    "h11_max_incomplete_event_size": 32_768,
    # Maximum connections; with those to the platform, they stay below the limit of open files.
    "limit_concurrency": 500,
    # Seconds for running requests to finish after a stop signal.
    "timeout_graceful_shutdown": 5,
    "access_log": False,
    "lifespan": "on",
    "server_header": False,
    "ws": "none",
}
