"""The ASGI apps: requests as jobs and answers as responses; or why the worker does not start."""

import asyncio
import contextlib
import json
import math
import uuid
from collections.abc import AsyncGenerator
from typing import Any

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from worker.app import Worker
from worker.batches.store import Batches
from worker.dialects import llm_engine
from worker.engine import Engines
from worker.errors import (
    EngineBusy,
    EngineDead,
    StartFailed,
    Unauthorized,
    WorkerError,
    WrongMethod,
)
from worker.errors import defects_hidden as as_internal_error
from worker.record import UNANSWERED, JobRecord
from worker.routes.route import Route
from worker.serve import keys
from worker.serve.background import Background
from worker.serve.bodies import Bodies, decoded
from worker.serve.transfers import Transfers, route_of
from worker.settings import Settings

PING = "/ping"
# For load balancers, which have no key.
OPEN_TO_ALL = (PING, "/health")
READING = ("GET", "HEAD")
WRITING = ("POST", "PUT")
METHODS = (*READING, *WRITING, "DELETE")
# The beginnings of events: no other text begins so.
EVENTS = ("data:", "event:")
JSON = "application/json"
METRICS = "text/plain; version=0.0.4"

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class Service:
    """Every path is a route for ``Worker.handle``, the only way to the engine."""

    def __init__(self, engines: Engines, settings: Settings) -> None:
        self._engines = engines
        self._key = settings.serve_api_key
        self._bodies = Bodies(round(settings.max_input_mb * 1_000_000), settings.serve_timeout_s)
        # A limit of yields, and decoded events, are for the platform's queue only.
        as_text = settings.model_copy(update={"raw_openai_output": True})
        batches = Batches(settings)
        self._transfers = Transfers(batches.files, settings)
        self._background = Background()
        start = self._background.start
        # Nobody ends a job of a server for its time.
        self._worker = Worker(engines, as_text, limit=math.inf, start=start, seconds=math.inf)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._background.live(self._worker, receive, send)
            return
        request = Request(scope, receive)
        request_id = str(uuid.uuid4())
        try:
            self._admit(request)
            if route := self._transfers.take(request):
                await self._transfer(request, route, request_id, send)
                return
            # Before its body is read, which may take as long as an answer.
            if request.method in WRITING and self._worker.full:
                raise EngineBusy
            await self._respond(request, request_id, send)
        except ClientDisconnect:
            return
        except WorkerError as error:
            await error_response(error.body(request_id), scope)(scope, receive, send)

    def _admit(self, request: Request) -> None:
        """Check a request's key and method, and for /ping that the engine is alive.

        Raises:
            WorkerError: the key or the method is wrong, or the engine is dead.
        """
        path = request.scope["path"]
        open_to_all = path in OPEN_TO_ALL
        if self._key and not open_to_all and not self._has_key(request, self._key):
            raise Unauthorized
        # A body of anybody's is not read.
        methods = READING if open_to_all else METHODS
        if request.method not in methods:
            taken = " or ".join(method for method in methods if method != "HEAD")
            raise WrongMethod(f"{request.method} {path}: only {taken} is taken here.")
        if path == PING and self._engines.base.dead:
            raise EngineDead

    def _has_key(self, request: Request, key: SecretStr) -> bool:
        if keys.right(request.headers, key):
            return True
        # A link to a file works without it.
        path, query = request.scope["path"], request.query_params
        return request.method in READING and self._worker.links.right(path, query)

    async def _transfer(self, request: Request, route: Route, request_id: str, send: Send) -> None:
        """Answer a request that is no job, but has a line in the log as one.

        Raises:
            WorkerError: it is refused.
        """
        record = JobRecord(request_id, route=route.template, status=UNANSWERED)
        try:
            response = await self._transfers.answer(request, route)
            response.headers.update(_headers(request_id))
            await response(request.scope, request.receive, send)
            record.status = response.status_code
        except WorkerError as error:
            record.status = error.status
            raise
        finally:
            record.write()

    async def _respond(self, request: Request, request_id: str, send: Send) -> None:
        """Answer a request that is admitted.

        Raises:
            WorkerError: its body is refused.
        """
        scope, receive = request.scope, request.receive
        if scope["path"] == PING:
            await Response(headers=_headers(request_id))(scope, receive, send)
            return
        # Not starlette's own race: with servers of ASGI 2.4 it notices a client that leaves only
        # when it sends something, and an answer that is not streamed would be computed to its end.
        job = {"id": request_id, "input": await self._input(request)}
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

    async def _input(self, request: Request) -> dict[str, Any]:
        """Return a request as a job's input.

        Raises:
            WorkerError: the body is refused.
        """
        method, body = "GET" if request.method in READING else request.method, None
        if method in WRITING:
            content = await self._bodies.read(request)
            body = decoded(content, request.headers.get("content-type", ""))
        # Every event is sent as it comes: chunks that grow are for the platform's queue.
        return {"route": route_of(request), "method": method, "body": body, "max_batch_size": 1}

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
                # NaN, which JSON has not, is a defect of whoever computed it.
                with as_internal_error(job["id"]):
                    whole = _response(first, job["id"], scope)
                await whole(scope, receive, send)


class Refusal:
    """In place of a worker that can't start, every request is answered why.

    Callers with the key get 503 with the reason, load balancers without it 503 alone.
    """

    def __init__(self, error: StartFailed, key: SecretStr | None) -> None:
        self._error = error
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = str(uuid.uuid4())
        if self._key is None or keys.right(Headers(scope=scope), self._key):
            answer = error_response(self._error.body(request_id), scope)
        elif scope["path"] in OPEN_TO_ALL:
            answer = Response(status_code=self._error.status)
        else:
            answer = error_response(Unauthorized().body(request_id), scope)
        # OpenAI's client would otherwise try a 503 again.
        answer.headers["x-should-retry"] = "false"
        await answer(scope, receive, send)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _headers(request_id: str) -> dict[str, str]:
    return {"x-request-id": request_id}


def _response(chunk: Any, request_id: str, scope: Scope) -> Response:
    """Return the response for the one yield of an answer that is no stream, or of a failed job."""
    headers = _headers(request_id)
    if isinstance(chunk, str):
        return Response(_as_bytes(chunk), media_type=METRICS, headers=headers)
    if list(chunk) != ["error"]:
        return Response(_as_bytes(_encode(chunk)), media_type=JSON, headers=headers)
    return error_response(json.loads(chunk["error"]), scope)


def error_response(body: dict[str, Any], scope: Scope) -> Response:
    """Return the response for an error with this body."""
    error = body["error"]
    status, headers = error["code"], _headers(error["request_id"])
    if error["retryable"]:
        headers["retry-after"] = str(error.get("retry_after", 1))
    if llm_engine.asks(scope["path"], keys.authorization(Headers(scope=scope))[0]):
        status, body = llm_engine.refusal(body)
    return Response(_as_bytes(_encode(body)), status, headers, JSON)


async def _events(first: str, chunks: AsyncGenerator[Any, None]) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream; that its job has failed, its last event has said."""
    yield _as_bytes(first)
    async for chunk in chunks:
        if isinstance(chunk, str):
            yield _as_bytes(chunk)


def _as_bytes(text: str) -> bytes:
    # A text of vLLM's can have half of a surrogate pair, which UTF-8 has not.
    return text.encode(errors="replace")
