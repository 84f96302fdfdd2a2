"""The OpenAI path over plain HTTP, with no platform around: each request becomes a job."""

import asyncio
import contextlib
import json
import logging
import math
import secrets
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Message

from worker.app import Worker
from worker.engine import Engines
from worker.errors import (
    EngineDead,
    InvalidInput,
    RequestError,
    Unauthorized,
    WorkerError,
    WrongMethod,
)
from worker.settings import Settings

log = logging.getLogger(__name__)

Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

PING = "/ping"
# Load balancers ask these, and hold no key.
OPEN_TO_ALL = (PING, "/health")
METHODS = ("GET", "HEAD", "POST")
LARGEST_BODY_BYTES = 32_000_000
# How long requests that are running may go on when the server is told to stop.
GRACE_S = 30
LOOPBACK = ("127.0.0.1", "::1", "localhost")
# How each event of a stream begins, and no other text.
EVENTS = ("data:", "event:")
METRICS = "text/plain; version=0.0.4"


class Refused(RequestError):
    """What HTTP itself rules out, before there is a job."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Service:
    """The ASGI app: any path is a route of ``Worker.handle``, the one way to the engine."""

    def __init__(self, engines: Engines, settings: Settings) -> None:
        self._engines = engines
        self._key = settings.serve_api_key
        # A yield's limit, and decoded events, are for the platform's queue alone.
        as_text = settings.model_copy(update={"raw_openai_output": True})
        self._worker = Worker(engines, as_text, limit=math.inf)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        request_id = str(uuid.uuid4())
        try:
            self._admit(request)
            given = {} if scope["path"] == PING else await _input(request)
        except ClientDisconnect:
            return
        except WorkerError as error:
            refusal = {"error": json.dumps(error.body(request_id))}
            await _response(refusal, request_id)(scope, receive, send)
            return
        if not given:
            await Response(headers=_headers(request_id))(scope, receive, send)
            return
        answering = asyncio.create_task(
            self._answer({"id": request_id, "input": given}, scope, receive, send)
        )
        leaving = asyncio.create_task(_disconnect(receive))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Cancelling what still answers aborts the request in the engine.
            answering.cancel()
            leaving.cancel()
            await asyncio.wait({answering, leaving})
        if not answering.cancelled():
            answering.result()

    def _admit(self, request: Request) -> None:
        """Refuse whoever may not ask, or has nobody to ask.

        Raises:
            WorkerError: a wrong key, a method that no route takes, or the engine is dead.
        """
        path = request.scope["path"]
        if self._key and path not in OPEN_TO_ALL:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            # Anthropic's clients send the other.
            given = token if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
            key = self._key.get_secret_value().encode()
            if not secrets.compare_digest(given.encode("latin-1"), key):
                raise Unauthorized
        if request.method not in METHODS:
            raise WrongMethod(f"{request.method} {path}: only GET and POST are taken.")
        if path == PING and self._engines.main.dead:
            raise EngineDead

    async def _answer(
        self, job: dict[str, Any], scope: Message, receive: Receive, send: Send
    ) -> None:
        async with contextlib.aclosing(self._worker.handle(job)) as chunks:
            # Whether the job fails decides the status, which goes out before all else.
            first = await anext(chunks, "")
            if isinstance(first, str) and first.startswith(EVENTS):
                await _send_events(first, chunks, job["id"], send)
            else:
                await _response(first, job["id"])(scope, receive, send)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _input(request: Request) -> dict[str, Any]:
    """Make a job's input of a request; its query string no route would heed.

    Raises:
        RequestError: the body is too large, or is none that a route takes.
    """
    method = "POST" if request.method == "POST" else "GET"
    body = _decoded(await _body(request), request) if method == "POST" else None
    # Each event goes out as it comes: chunks that grow spare the platform's queue calls.
    return {"route": request.scope["path"], "method": method, "body": body, "max_batch_size": 1}


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LARGEST_BODY_BYTES:
            raise Refused(413, f"The body has more than {LARGEST_BODY_BYTES:,} bytes.")
    return bytes(body)


def _decoded(body: bytes, request: Request) -> dict[str, Any]:
    if not body:
        return {}
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise Refused(415, "The body is JSON, and its Content-Type is application/json.")
    try:
        decoded = json.loads(body)
    except RecursionError:
        raise InvalidInput("The body is nested too deeply.") from None
    except ValueError as broken:
        raise InvalidInput(f"The body is broken JSON: {broken}") from None
    if not isinstance(decoded, dict):
        raise InvalidInput("The body is not a JSON object.")
    return decoded


def _headers(request_id: str) -> dict[str, str]:
    return {"x-request-id": request_id}


def _response(chunk: Any, request_id: str) -> Response:
    """Render the one yield of an answer that is no stream, or of a job that failed."""
    headers = _headers(request_id)
    if isinstance(chunk, str):
        return PlainTextResponse(chunk, media_type=METRICS, headers=headers)
    if list(chunk) != ["error"]:
        return JSONResponse(chunk, headers=headers)
    body = json.loads(chunk["error"])
    if body["error"]["retryable"]:
        headers["retry-after"] = "1"
    return JSONResponse(body, body["error"]["code"], headers)


async def _send_events(
    first: str, chunks: AsyncGenerator[Any, None], request_id: str, send: Send
) -> None:
    headers = {**_headers(request_id), "content-type": "text/event-stream; charset=utf-8"}
    head = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    chunk: Any = first
    while chunk:
        await send({"type": "http.response.body", "body": chunk.encode(), "more_body": True})
        chunk = await anext(chunks, None)
    await send({"type": "http.response.body"})


def server(engines: Engines, settings: Settings, host: str, port: int) -> uvicorn.Server:
    """Return a server that has not begun. Its port opens when it runs.

    There is no time in which it would answer that it is still starting: the engine is forked
    before any thread exists, so it is ready before a loop can run.
    """
    if host not in LOOPBACK and settings.serve_api_key is None:
        log.warning("anyone who reaches this port is answered: set SERVE_API_KEY to ask for a key")
    config = uvicorn.Config(
        Service(engines, settings),
        host=host,
        port=port,
        lifespan="off",
        ws="none",
        # The handlers that are there already will do.
        log_config=None,
        log_level="info",
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )
    return uvicorn.Server(config)
