"""The proxy: an ASGI app that serves all routes of a deployed endpoint on this machine."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import anyio
from starlette.requests import ClientDisconnect
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from llm_worker_client import callers
from llm_worker_client.endpoint import AsyncEndpoint
from llm_worker_client.mapping import Refusal, Request, find_dialect, is_upload, responses
from llm_worker_client.mapping.forms import aparse_form
from llm_worker_client.steps import PlatformUnreachable
from llm_worker_console import make_page

# Maximum bytes of a body. A form may be larger if a volume is configured for its file.
MAX_BODY_BYTES = 64_000_000
# Seconds between two checks whether a connection is idle; the second one closes it.
IDLE_CHECK_S = 20.0


class Proxy:
    """Answers requests by running jobs on an endpoint or by forwarding them to the platform's API.

    Args:
        endpoint: The endpoint, with the account's API key.
        caller_key: Key that callers must send; None if any program on this machine may call.
        serves_network: Whether other machines call, by names that the proxy can't know. Otherwise
            it refuses web pages of other sites.
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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._handle_lifespan(receive, send)
            return
        incoming = StarletteRequest(scope, receive)
        request_head = Request(incoming.method, _read_target(scope), dict(incoming.headers))
        # The console's page needs no key, but the requests that it sends do.
        is_console = (incoming.method, request_head.target) == ("GET", "/")
        try:
            if not self._serves_network:
                callers.refuse_web_pages(incoming.headers)
            if self._caller_key is not None and not is_console:
                callers.check_key(incoming.headers, self._caller_key)
            request = await self._read_body(request_head, incoming.stream())
        except ClientDisconnect:
            return
        except Refusal as refusal:
            dialect = find_dialect(request_head, self._endpoint.id)
            head, body = responses.error_response(refusal, dialect)
            await Response(body, head.status, head.headers)(scope, receive, send)
            return
        if is_console:
            await self._console(scope, receive, send)
            return
        with request.form or nullcontext():
            async with anyio.create_task_group() as group:
                group.start_soon(_cancel_on_disconnect, receive, group.cancel_scope)
                await self._answer_request(request, send)
                group.cancel_scope.cancel()

    async def _read_body(self, request: Request, parts: AsyncIterator[bytes]) -> Request:
        """Return a request with its body.

        Raises:
            Refusal: If the body is too large, is a broken form, or can't be stored on the disk.
        """
        if not is_upload(request, self._endpoint.id):
            parts = _limit_body_size(parts, f"The body has more than {MAX_BODY_BYTES:,} bytes.")
            return replace(request, body=b"".join([part async for part in parts]))
        if missing := await asyncio.to_thread(self._endpoint.lazy_volume.configuration_error):
            message = f"The upload has more than {MAX_BODY_BYTES:,} bytes. {missing}"
            parts = _limit_body_size(parts, message)
        return replace(request, form=await aparse_form(request.header("content-type"), parts))

    async def _answer_request(self, request: Request, send: Send) -> None:
        answer = await self._endpoint.answer_request(request)
        response = StreamingResponse(answer.body_parts(), answer.head.status, answer.head.headers)
        try:
            # Calling the response as an ASGI app would also wait for the caller to disconnect.
            await response.stream_response(send)
        except PlatformUnreachable:
            # The server now closes the connection because the body is incomplete.
            return
        finally:
            answer.abandon()

    async def _handle_lifespan(self, receive: Receive, send: Send) -> None:
        """Answer the server's lifespan messages, and close the endpoint at shutdown."""
        while (await receive())["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        await self._endpoint.aclose()
        await send({"type": "lifespan.shutdown.complete"})


async def _limit_body_size(parts: AsyncIterator[bytes], message: str) -> AsyncIterator[bytes]:
    """Yield the parts of a body; raise ``Refusal`` if it has more than ``MAX_BODY_BYTES``."""
    size = 0
    async for part in parts:
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise Refusal(413, message)
        yield part


def _read_target(scope: Scope) -> str:
    path, query = scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


async def _cancel_on_disconnect(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


class ProxyConnection(H11Protocol):
    """A connection that is closed if its client is idle; uvicorn would wait forever.

    It is closed at the second consecutive check that finds no running and no new request, even if
    the client has not read the end of the last response.
    """

    _check_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn narrows the type, too
        super().connection_made(transport)
        self._schedule_idle_check()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._check_timer is not None:
            self._check_timer.cancel()

    def _close_if_idle(self, was_waiting: bool, last_cycle: object) -> None:
        if was_waiting and self._is_idle() and self.cycle is last_cycle:
            self.transport.abort()
        else:
            self._schedule_idle_check()

    def _schedule_idle_check(self) -> None:
        arguments = (self._is_idle(), self.cycle)
        self._check_timer = self.loop.call_later(IDLE_CHECK_S, self._close_if_idle, *arguments)

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete


# Options for uvicorn.
UVICORN_OPTIONS: dict[str, Any] = {
    "http": ProxyConnection,
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
