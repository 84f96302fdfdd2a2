"""The proxy: a server on this machine with all routes of a deployed endpoint (an ASGI app)."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

from starlette.requests import ClientDisconnect
from starlette.requests import Request as Incoming
from starlette.types import Receive, Scope, Send

from llm_worker_client import callers
from llm_worker_client.endpoint import AsyncEndpoint
from llm_worker_client.mapping import Refusal, Request, dialect_of, responses
from llm_worker_client.mapping.forms import aread
from llm_worker_client.steps import Head, Unreachable

# Bytes of a body that are read, unless it is a file that goes to the volume.
LARGEST_BODY = 64_000_000


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
        target = _target(scope)
        try:
            callers.check(incoming.headers, self._key)
            request = await self._read(incoming, target)
        except ClientDisconnect:
            return
        except Refusal as refusal:
            request = Request(incoming.method, target, dict(incoming.headers))
            dialect = dialect_of(request, self._endpoint.id)
            await _send_whole(send, *responses.refused(refusal, dialect))
            return
        # Not starlette's own responses: they notice a caller that leaves only when they send.
        answering = asyncio.create_task(self._answer(request, send))
        leaving = asyncio.create_task(_disconnect(receive))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            answering.cancel()
            leaving.cancel()
            await asyncio.wait({answering, leaving})
            if request.form is not None:
                request.form.close()
        if not answering.cancelled():
            answering.result()

    async def _read(self, incoming: Incoming, target: str) -> Request:
        """Return a request with its body.

        Raises:
            Refusal: it is too large, or a broken form.
        """
        request = Request(incoming.method, target, dict(incoming.headers))
        if not request.is_form:
            parts = _bounded(incoming.stream(), f"The body has more than {LARGEST_BODY:,} bytes.")
            return replace(request, body=b"".join([part async for part in parts]))
        parts = incoming.stream()
        if missing := await asyncio.to_thread(self._endpoint.shelf.missing):
            parts = _bounded(parts, f"The upload has more than {LARGEST_BODY:,} bytes. {missing}")
        return replace(request, form=await aread(request.header("content-type"), parts))

    async def _answer(self, request: Request, send: Send) -> None:
        answer = await self._endpoint.answer(request)
        try:
            await _send_head(send, answer.head)
            async for part in answer.parts():
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except Unreachable:
            # The server breaks the connection off: the body is not whole.
            return
        finally:
            answer.leave()

    async def _live(self, receive: Receive, send: Send) -> None:
        """Answer what a server tells of its beginning and its end."""
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


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_head(send: Send, head: Head) -> None:
    headers = [(name.encode(), value.encode("latin-1")) for name, value in head.headers.items()]
    await send({"type": "http.response.start", "status": head.status, "headers": headers})


async def _send_whole(send: Send, head: Head, body: bytes) -> None:
    await _send_head(send, head)
    await send({"type": "http.response.body", "body": body})
