"""The ASGI apps: one runs requests as jobs, the other reports why the worker failed to start."""

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
from worker.background import BackgroundWork
from worker.dialects import llm_engine
from worker.dialects.table import find_enabled_route
from worker.engine import Engines
from worker.errors import (
    EngineBusy,
    EngineDead,
    ShuttingDown,
    StartFailed,
    Unauthorized,
    UnknownRoute,
    WorkerError,
    WrongMethod,
    hide_defects,
)
from worker.job import OpenAIJob
from worker.record import UNANSWERED, JobRecord
from worker.routes import events
from worker.routes.route import Route
from worker.serve import keys
from worker.serve.bodies import (
    MAX_BUFFERED_BODIES,
    BodyReader,
    BufferedBytes,
    BufferedResponse,
    parse_body,
)
from worker.serve.transfers import FileTransfers
from worker.settings import Settings

PING = "/ping"
# For load balancers, which have no key.
PUBLIC_PATHS = (PING, "/health")
READ_METHODS = ("GET", "HEAD")
WRITE_METHODS = ("POST", "PUT")
METHODS = (*READ_METHODS, *WRITE_METHODS, "DELETE")
# Prefixes of event streams; no other text starts with them.
EVENT_PREFIXES = ("data:", "event:")
JSON_TYPE = "application/json"
EVENTS_TYPE = "text/event-stream"
METRICS_TYPE = "text/plain; version=0.0.4"
# Header whose value 1 requests a receipt in the answer.
RECEIPT_HEADER = "x-receipt"
# Header of every request of Anthropic's clients. They share the paths of files with OpenAI's.
ANTHROPIC_HEADER = "anthropic-version"
# Maximum seconds for the running parts of long work to finish at shutdown.
STOP_S = 5.0
# Keys of the jobs, without growth: only the platform's queue needs few and large chunks. The first
# token is sent immediately, and then each event, up to 50 a second: a reader does not see shorter
# gaps, and each event takes time of all requests.
CHUNK_KEYS = {
    "min_batch_size": 1,
    "max_batch_size": 50,
    "batch_size_growth_factor": 50,
    "max_batch_delay_ms": 20,
}

_encode_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class WorkerApp:
    """Runs requests as jobs of ``Worker.handle``, except pings and transfers of files."""

    def __init__(self, engines: Engines, settings: Settings) -> None:
        self._engines = engines
        self._settings = settings
        self._key = settings.serve_api_key
        max_bytes = round(settings.max_input_mb * 1_000_000)
        # The requests and responses in memory.
        self._buffered = BufferedBytes(MAX_BUFFERED_BODIES * max_bytes)
        self._bodies = BodyReader(max_bytes, settings.serve_timeout_s, self._buffered)
        # Serve events as text; they are decoded only for the platform's queue.
        as_text = settings.model_copy(update={"raw_openai_output": True})
        # No platform limits the yields and the time of a server's jobs.
        self._worker = Worker(
            engines,
            as_text,
            yield_limit=math.inf,
            start_work=lambda work: self._background.start_work(work),  # noqa: PLW0108 - created next
            timeout_s=math.inf,
        )
        self._background = BackgroundWork(self._worker, is_server=True)
        self._transfers = FileTransfers(self._worker.files, settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._run_long_work(receive, send)
            return
        request, request_id = Request(scope, receive), str(uuid.uuid4())
        try:
            self._check_request(request)
            if route := self._transfers.find_transfer_route(request):
                await self._transfer_file(request, route, request_id, send)
            elif scope["path"] == PING:
                await Response(headers=_request_id_header(request_id))(scope, receive, send)
            elif request.method in WRITE_METHODS and self._worker.is_full:
                # Refuse before reading the body, which may take as long as an answer.
                raise EngineBusy
            else:
                await self._run_job(request, request_id, send)
        except ClientDisconnect:
            return
        except WorkerError as error:
            await error_response(error.body(request_id), scope)(scope, receive, send)

    def fail_requests(self) -> None:
        self._worker.fail_all_jobs(ShuttingDown())

    async def _run_long_work(self, receive: Receive, send: Send) -> None:
        """Run long work in the background between the server's startup and its shutdown."""
        await receive()
        async with asyncio.TaskGroup() as tasks:
            background_task = tasks.create_task(self._background.run())
            await send({"type": "lifespan.startup.complete"})
            await receive()
            self._worker.stop_long_work()
            self._background.stop()
            await asyncio.wait({background_task}, timeout=STOP_S)
            background_task.cancel()
        await send({"type": "lifespan.shutdown.complete"})

    def _check_request(self, request: Request) -> None:
        """Check a request's key, method and API, and for /ping that the engine is alive."""
        path = request.scope["path"]
        is_public, reads = path in PUBLIC_PATHS, request.method in READ_METHODS
        links = self._worker.signed_links
        if not (
            not self._key
            or is_public
            or keys.request_has_key(request.headers, self._key)
            # A signed link to a file needs no key.
            or (reads and links.has_valid_signature(path, request.query_params))
        ):
            raise Unauthorized
        # The public paths take no body, since their clients need no key.
        methods = READ_METHODS if is_public else METHODS
        if request.method not in methods:
            allowed = " or ".join(method for method in methods if method != "HEAD")
            raise WrongMethod(f"{request.method} {path}: only {allowed} is taken here.")
        if ANTHROPIC_HEADER in request.headers and OpenAIJob(route=path).path.startswith("/files"):
            raise UnknownRoute("Anthropic's API for files is not served: send a file's text.")
        if path == PING and self._engines.base_model.is_dead:
            raise EngineDead

    async def _transfer_file(
        self, request: Request, route: Route, request_id: str, send: Send
    ) -> None:
        """Answer a transfer of a file, which is not a job; log a record as for a job."""
        record = JobRecord(request_id, route=route.path_template, status=UNANSWERED)
        try:
            response = await self._transfers.answer(request, route)
            response.headers.update(_request_id_header(request_id))
            await response(request.scope, request.receive, send)
            record.status = response.status_code
        except WorkerError as error:
            record.status = error.status
            raise
        finally:
            record.write_to_log()

    async def _run_job(self, request: Request, request_id: str, send: Send) -> None:
        """Run a request as a job until it ends or the client disconnects."""
        method, body = "GET" if request.method in READ_METHODS else request.method, None
        job_route = self._transfers.to_job_route(request)
        route = find_enabled_route(OpenAIJob(route=job_route, method=method), self._settings)
        if method in WRITE_METHODS and route:
            # No variable holds the bytes while the job runs.
            content_type = request.headers.get("content-type", "")
            body = parse_body(await self._bodies.read(request), content_type)
        job_input = {"route": job_route, "method": method, "body": body, **CHUNK_KEYS}
        if request.headers.get(RECEIPT_HEADER) == "1":
            job_input["receipt"] = True

        # Wait for a disconnect here: with servers of ASGI 2.4, StreamingResponse notices one only
        # when it sends something, and an unstreamed answer would be computed to its end.
        scope, receive = request.scope, request.receive
        job = {"id": request_id, "input": job_input}
        answer = asyncio.create_task(self._send_job_answer(job, scope, receive, send))
        disconnect = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await asyncio.wait({answer, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Cancelling an unfinished answer aborts the request in the engine.
            answer.cancel()
            disconnect.cancel()
            await asyncio.wait({answer, disconnect})
        if not answer.cancelled():
            answer.result()

    async def _send_job_answer(
        self, job: dict[str, Any], scope: Scope, receive: Receive, send: Send
    ) -> None:
        headers = _request_id_header(job["id"])
        async with contextlib.aclosing(self._worker.handle(job)) as chunks:
            # The status is sent first, and depends on whether the job fails.
            first = await anext(chunks, "")
            if isinstance(first, str) and first.startswith(EVENT_PREFIXES):
                events = _encode_events(first, chunks)
                await StreamingResponse(events, 200, headers, EVENTS_TYPE).stream_response(send)
                return
            # JSON can't encode NaN: an answer with it is a defect of the worker.
            with hide_defects(job["id"]):
                response: Response
                if not isinstance(first, str) and list(first) == ["error"]:
                    response = error_response(json.loads(first["error"]), scope)
                else:
                    is_text = isinstance(first, str)
                    body = _encode_text(first if is_text else _encode_json(first))
                    media_type = METRICS_TYPE if is_text else JSON_TYPE
                    response = BufferedResponse(
                        self._buffered, body, media_type=media_type, headers=headers
                    )
            await response(scope, receive, send)


class FailedStartApp:
    """Answers every request with the error of a worker that failed to start.

    Callers with the key get the error; without it, load balancers get only its status, others 401.
    """

    def __init__(self, error: StartFailed, key: SecretStr | None) -> None:
        self._error = error
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = str(uuid.uuid4())
        if self._key is None or keys.request_has_key(Headers(scope=scope), self._key):
            response = error_response(self._error.body(request_id), scope)
        elif scope["path"] in PUBLIC_PATHS:
            response = Response(status_code=self._error.status)
        else:
            response = error_response(Unauthorized().body(request_id), scope)
        await response(scope, receive, send)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _request_id_header(request_id: str) -> dict[str, str]:
    return {"x-request-id": request_id}


def error_response(body: dict[str, Any], scope: Scope) -> Response:
    error = body["error"]
    status, headers = error["code"], _request_id_header(error["request_id"])
    if error["retryable"]:
        headers["retry-after"] = str(error.get("retry_after", 1))
    else:
        # OpenAI's client would otherwise retry after 408, 409, 429 and all statuses from 500.
        headers["x-should-retry"] = "false"
    scheme, _ = keys.parse_authorization(Headers(scope=scope))
    if llm_engine.is_llm_engine_request(scope["path"], scheme):
        status, body = llm_engine.error_response(body)
    elif ANTHROPIC_HEADER in Headers(scope=scope):
        body = {**events.ANTHROPIC_ERRORS.keys, **body}
    return Response(_encode_text(_encode_json(body)), status, headers, JSON_TYPE)


async def _encode_events(
    first: str, chunks: AsyncGenerator[Any, None]
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream, without the job's error, which the last event reports."""
    yield _encode_text(first)
    async for chunk in chunks:
        if isinstance(chunk, str):
            yield _encode_text(chunk)


def _encode_text(text: str) -> bytes:
    # vLLM's text may contain lone surrogates, which UTF-8 can't encode.
    return text.encode(errors="replace")
