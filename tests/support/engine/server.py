"""The part of vLLM's server that the worker uses; it plays a script over HTTP."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message

from worker.engine import Delta
from worker.errors import OnOtherVolume, RefusedByEngine, WorkerError

CHAT = "/v1/chat/completions"
# Routes that answer every request immediately, with their own path.
ECHO_ROUTES = (
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/tokenize",
)

# Keys of request bodies, by path.
_COMMON = {"model", "stream", "temperature"}
_SAMPLING = _COMMON | {"n", "max_tokens", "logprobs", "structured_outputs"}
_SAMPLING |= {"use_beam_search", "length_penalty"}
KEYS = {
    CHAT: frozenset({"messages", "tools", "chat_template_kwargs", *_SAMPLING}),
    "/v1/completions": frozenset({"prompt", "echo", *_SAMPLING}),
    "/v1/responses": frozenset({"input", "instructions", "request_id", *_COMMON}),
    "/v1/messages": frozenset({"messages", "system", *_COMMON}),
    "/v1/messages/count_tokens": frozenset({"messages", "system", "model"}),
    "/tokenize": frozenset({"messages", "prompt", "model"}),
    "/version": frozenset[str](),
}


class Player(Protocol):
    """An engine that plays a script."""

    requests: list[Any]

    @property
    def script(self) -> Sequence[Any]: ...

    def play(self, request_id: str) -> AsyncGenerator[Delta, None]: ...


def make_app(engine: Player) -> Starlette:
    """Return an app with vLLM's routes that plays the engine's script."""

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "demo", "parent": None}]})

    async def version(_: Request) -> Response:
        return JSONResponse({"version": "0"})

    async def echo_path(request: Request) -> Response:
        engine.requests.append(await request.json())
        return JSONResponse({"path": request.url.path})

    async def complete(request: Request) -> Response:
        body = await request.json()
        engine.requests.append(body)
        request_id = request.headers["x-request-id"]
        first_step = engine.script[0] if engine.script else None
        if isinstance(first_step, RefusedByEngine):
            return _error_response(first_step)
        # The worker's own check of an adapter's name raises this error in vLLM's app.
        if isinstance(first_step, OnOtherVolume):
            raise first_step
        if body.get("stream"):
            return StreamingResponse(
                _events(engine, request_id), media_type="text/event-stream; charset=utf-8"
            )
        return await _cancel_on_disconnect(request, _complete(engine, request_id))

    return Starlette(
        routes=[
            Route("/v1/models", models),
            Route("/version", version),
            Route(CHAT, complete, methods=["POST"]),
            Route("/v1/completions", complete, methods=["POST"]),
            *(Route(path, echo_path, methods=["POST"]) for path in ECHO_ROUTES),
        ]
    )


def static_app(*parts: str, status: int = 200, media_type: str = "application/json") -> ASGIApp:
    """Return an app that answers every request with these parts; it runs on any loop."""
    headers = [(b"content-type", media_type.encode())]

    async def app(_: Message, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for part in parts:
            body = {"type": "http.response.body", "body": part.encode(), "more_body": True}
            await send(body)

    return app


async def _events(engine: Player, request_id: str) -> AsyncGenerator[str, None]:
    try:
        async with contextlib.aclosing(engine.play(request_id)) as deltas:
            async for delta in deltas:
                choice = {"index": delta.index, "delta": {"content": delta.text}}
                reason = {"finish_reason": delta.finish_reason}
                yield event({"id": request_id, "choices": [choice | reason]})
    except WorkerError as error:
        yield event(_error(error))
    yield "data: [DONE]\n\n"


async def _complete(engine: Player, request_id: str) -> Response:
    try:
        deltas = [delta async for delta in engine.play(request_id)]
    except WorkerError as error:
        return _error_response(error)
    choices = [
        {
            "index": delta.index,
            "message": {"role": "assistant", "content": delta.text},
            "finish_reason": delta.finish_reason,
        }
        for delta in join_deltas(deltas)
    ]
    return JSONResponse({"id": request_id, "choices": choices})


async def _cancel_on_disconnect(
    request: Request, answer: Coroutine[Any, Any, Response]
) -> Response:
    """Cancel an unstreamed response when its client disconnects, as vLLM does."""
    answering = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(request.receive())
    await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
    if leaving.done():
        answering.cancel()
        await asyncio.wait({answering})
        return Response(status_code=499)
    leaving.cancel()
    return await answering


def event(data: dict[str, Any]) -> str:
    """Return an SSE event, formatted as compactly as vLLM's."""
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"


def _error(error: WorkerError) -> dict[str, Any]:
    """Return an error in vLLM's format, without the worker's additional keys."""
    body = error.body()["error"]
    return {"error": {key: body[key] for key in ("message", "type", "param", "code")}}


def _error_response(error: WorkerError) -> Response:
    return JSONResponse(_error(error), status_code=error.status)


def join_deltas(deltas: Sequence[Delta]) -> list[Delta]:  # one per choice
    choices: dict[int, list[Delta]] = {}
    for delta in deltas:
        choices.setdefault(delta.index, []).append(delta)
    return [
        Delta(
            index=index,
            text="".join(part.text for part in parts),
            tokens=sum(part.tokens for part in parts),
            prompt_tokens=parts[-1].prompt_tokens,
            finish_reason=parts[-1].finish_reason,
        )
        for index, parts in choices.items()
    ]
