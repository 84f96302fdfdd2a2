"""The OpenAI path over plain HTTP, without a platform: every request is a job."""

import asyncio
import contextlib
import json
import logging
import math
import secrets
import uuid
from collections.abc import AsyncGenerator
from typing import Any

import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

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

PING = "/ping"
# For load balancers, which have no key.
OPEN_TO_ALL = (PING, "/health")
METHODS = ("GET", "HEAD", "POST")
LARGEST_BODY_BYTES = 32_000_000
# Seconds that running requests have to end after a signal to stop.
GRACE_S = 30
LOOPBACK = ("127.0.0.1", "::1", "localhost")
# The beginnings of events: no other text begins so.
EVENTS = ("data:", "event:")
METRICS = "text/plain; version=0.0.4"


class Refused(RequestError):
    """A request whose body can't be a job's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Service:
    """The ASGI app: every path is a route for ``Worker.handle``, the only way to the engine."""

    def __init__(self, engines: Engines, settings: Settings) -> None:
        self._engines = engines
        self._key = settings.serve_api_key
        # A limit of yields, and decoded events, are for the platform's queue only.
        as_text = settings.model_copy(update={"raw_openai_output": True})
        self._worker = Worker(engines, as_text, limit=math.inf)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        request_id = str(uuid.uuid4())
        try:
            self._admit(request)
            payload = {} if scope["path"] == PING else await _input(request)
        except ClientDisconnect:
            return
        except WorkerError as error:
            refusal = {"error": json.dumps(error.body(request_id))}
            await _response(refusal, request_id)(scope, receive, send)
            return
        if not payload:
            await Response(headers=_headers(request_id))(scope, receive, send)
            return
        # Not starlette's own race: with servers of ASGI 2.4 it notices a client that leaves only
        # when it sends something, and an answer that is not streamed would be computed to its end.
        job = {"id": request_id, "input": payload}
        answering = asyncio.create_task(self._answer(job, scope, receive, send))
        leaving = asyncio.create_task(_disconnect(receive))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Cancelling an unfinished answer aborts the request in the engine.
            answering.cancel()
            leaving.cancel()
            await asyncio.wait({answering, leaving})
        if not answering.cancelled():
            answering.result()

    def _admit(self, request: Request) -> None:
        """Check a request's key and method, and for /ping that the engine is alive.

        Raises:
            WorkerError: the key or the method is wrong, or the engine is dead.
        """
        path = request.scope["path"]
        if self._key and path not in OPEN_TO_ALL:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            # Anthropic's clients send x-api-key.
            sent = token if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
            key = self._key.get_secret_value().encode()
            if not secrets.compare_digest(sent.encode("latin-1"), key):
                raise Unauthorized
        if request.method not in METHODS:
            raise WrongMethod(f"{request.method} {path}: only GET and POST are taken.")
        if path == PING and self._engines.main.dead:
            raise EngineDead

    async def _answer(
        self, job: dict[str, Any], scope: Scope, receive: Receive, send: Send
    ) -> None:
        async with contextlib.aclosing(self._worker.handle(job)) as chunks:
            # The status is sent first, and depends on whether the job fails.
            first = await anext(chunks, "")
            if isinstance(first, str) and first.startswith(EVENTS):
                headers, media_type = _headers(job["id"]), "text/event-stream"
                stream = StreamingResponse(_events(first, chunks), 200, headers, media_type)
                await stream.stream_response(send)
            else:
                await _response(first, job["id"])(scope, receive, send)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _input(request: Request) -> dict[str, Any]:
    """Return a request as a job's input, without the query string, which no route uses.

    Raises:
        RequestError: the body is too large, or no JSON object.
    """
    method = "POST" if request.method == "POST" else "GET"
    body = _decoded(await _body(request), request) if method == "POST" else None
    # Every event is sent as it comes: chunks that grow are for the platform's queue.
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
    """Return the response for the one yield of an answer that is no stream, or of a failed job."""
    headers = _headers(request_id)
    if isinstance(chunk, str):
        return PlainTextResponse(chunk, media_type=METRICS, headers=headers)
    if list(chunk) != ["error"]:
        return JSONResponse(chunk, headers=headers)
    body = json.loads(chunk["error"])
    if body["error"]["retryable"]:
        headers["retry-after"] = "1"
    return JSONResponse(body, body["error"]["code"], headers)


async def _events(first: str, chunks: AsyncGenerator[Any, None]) -> AsyncGenerator[str, None]:
    """Yield the events of a stream; that its job has failed, its last event has said."""
    yield first
    async for chunk in chunks:
        if isinstance(chunk, str):
            yield chunk


def server(engines: Engines, settings: Settings, host: str, port: int) -> uvicorn.Server:
    """Return a server that has not started; its port opens when it runs.

    It never has to answer that it is starting: the engine is ready before a loop can run, since it
    is forked before any thread exists.
    """
    if host not in LOOPBACK and settings.serve_api_key is None:
        log.warning("anyone who reaches this port is answered: set SERVE_API_KEY to ask for a key")
    config = uvicorn.Config(
        Service(engines, settings),
        host=host,
        port=port,
        lifespan="off",
        ws="none",
        # The worker's own handlers take uvicorn's log, too.
        log_config=None,
        log_level="info",
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )
    return uvicorn.Server(config)
