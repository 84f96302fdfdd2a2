"""Requests that vLLM's own server answers: called in process, its errors told as the worker's."""

import contextlib
import json
import logging
import re
from collections.abc import AsyncGenerator, Mapping
from http import HTTPStatus
from typing import Any

from worker.asgi import Head
from worker.chunking import Piece
from worker.engine import Engine, Engines
from worker.errors import (
    InternalError,
    RefusedByEngine,
    UnknownRoute,
    WorkerError,
    in_settings,
)
from worker.job import OpenAIJob
from worker.routes.answer import Answer, json_size
from worker.routes.openai.bodies import CHAT, MESSAGES, RESPONSES, Asked, prepared
from worker.settings import Settings

log = logging.getLogger(__name__)

STREAMED = {CHAT, "/v1/completions", RESPONSES, MESSAGES}

EVENT_END = b"\n\n"
DONE = "data: [DONE]\n\n"
DATA = "data: "
# How the events begin that hold an error: those of OpenAI's older routes, and of all others.
ERROR_EVENTS = ('data: {"error"', "event: error\n")
# How a stream begins that says nothing yet, though its request may still be refused.
OPENINGS = ("event: response.created\n", "event: response.in_progress\n")
# What vLLM's messages go on with: the refused value, which may be a prompt.
REFUSED_VALUE = re.compile(
    r" \(parameter=[\w.]+(, value=.*)?\)$"
    r"| \[type=\w+, input_value=.*?\]$"
    r"|\n    For further information visit .*$"
    r"|: \{.*\}$",
    re.DOTALL | re.MULTILINE,
)


def answer(
    job: OpenAIJob,
    path: str,
    body: dict[str, Any] | None,
    request_id: str,
    engines: Engines,
    settings: Settings,
) -> Answer[Any]:
    """Forward a request; ``path`` is where vLLM's server has its route."""
    stream = job.stream and path in STREAMED

    async def pieces() -> AsyncGenerator[Piece[Any], None]:
        target = _serving(path, body, engines)
        asked = Asked(body)
        if body is not None:
            asked = prepared(job, path, target, request_id, settings)
            await _find_model(asked.body, target)
        async with contextlib.aclosing(target.call(path, asked.body, request_id)) as parts:
            async for value in _values(parts, request_id):
                # The closing mark holds no data: it has no place in a list of decoded events.
                if settings.raw_openai_output or value != DONE:
                    told = asked.kept(value)
                    yield Piece(told, weight=1, size=json_size(told))

    def render(values: list[Any]) -> Any:
        if not stream:
            return values[0]
        return "".join(values) if settings.raw_openai_output else _decoded(values)

    return Answer(
        stream=stream,
        pieces=pieces,
        render=render,
        render_error=lambda error: render(_last_events(path, error, settings)),
        # What Anthropic's clients tell an error by.
        error_keys={"type": "error"} if path.startswith(MESSAGES) else {},
    )


def _serving(path: str, body: dict[str, Any] | None, engines: Engines) -> Engine:
    """Choose the engine that has a route, and of several the one of the model that is named.

    Raises:
        UnknownRoute: none has it.
    """
    able = [engine for engine in engines if engine.keys(path) is not None]
    if not able:
        names = ", ".join(engine.model.names[0] for engine in engines)
        told = f"{path}: this is nothing that {names} can do."
        if "generate" in engines.main.model.tasks and engines.embedder is None:
            told += " A model that embeds can be served beside it: set EMBEDDING_MODEL_NAME."
        raise UnknownRoute(told)
    name = (body or {}).get("model")
    return next((engine for engine in able if name in engine.model.names), able[0])


async def _find_model(body: Mapping[str, Any] | None, engine: Engine) -> None:
    """Have the adapter served that a request names.

    Raises:
        WorkerError: nothing of that name is served, or it can't be loaded.
    """
    name = (body or {}).get("model")
    if isinstance(name, str) and name not in engine.model.names:
        await engine.adopt(name)


async def _values(
    parts: AsyncGenerator[Head | bytes, None], request_id: str
) -> AsyncGenerator[Any, None]:
    """Yield whole SSE events of a stream, or the one body of any other answer.

    Raises:
        WorkerError: vLLM's server answered with an error instead.
    """
    head = await anext(parts)
    assert isinstance(head, Head)  # for the type checker: the head comes first
    if head.media_type == "text/event-stream":
        held: list[str] = []
        async for event in _events(parts):
            if event.startswith(ERROR_EVENTS):
                raise _refusal(_error_in(event), None, request_id)
            held.append(event)
            if not event.startswith(OPENINGS):
                for each in held:
                    yield each
                held.clear()
        for each in held:
            yield each
        return
    body = b"".join([part async for part in parts if isinstance(part, bytes)])
    if head.status >= 400:
        told = json.loads(body)
        error = told.get("error") or {"message": told.get("detail")}
        raise _refusal(error, head.status, request_id)
    yield json.loads(body) if head.media_type == "application/json" else body.decode()


async def _events(parts: AsyncGenerator[Head | bytes, None]) -> AsyncGenerator[str, None]:
    """Cut a body into SSE events; vLLM sends one a part today, but promises nothing."""
    rest = b""
    async for part in parts:
        assert isinstance(part, bytes)  # for the type checker: there is one head
        *events, rest = (rest + part).split(EVENT_END)
        for event in events:
            yield (event + EVENT_END).decode()
    if rest:
        yield rest.decode()


def _refusal(error: dict[str, Any], status: int | None, request_id: str) -> WorkerError:
    """Make the worker's error of what vLLM's server says, or its web framework below it."""
    # Anthropic's shape has no code.
    code = status or error.get("code") or HTTPStatus.INTERNAL_SERVER_ERROR
    message = in_settings(REFUSED_VALUE.sub("", error["message"]))
    if code == HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("request %s: vLLM's server answers %s: %s", request_id, code, message)
        return InternalError()
    return RefusedByEngine(message, status=code, param=error.get("param"))


def _error_in(event: str) -> dict[str, Any]:
    (data,) = _decoded([event])
    error: dict[str, Any] = data.get("error") or data
    return error


def _last_events(path: str, body: dict[str, Any], settings: Settings) -> list[str]:
    """Write an error as the route's clients look for it in a stream, and the stream's end."""
    if path == MESSAGES:
        return [_event({"type": "error", **body}, "event: error\n")]
    if path == RESPONSES:
        told = {key: body["error"][key] for key in ("code", "message", "param")}
        return [_event({"type": "error", **told, **body}, "event: error\n")]
    return [_event(body), *([DONE] if settings.raw_openai_output else [])]


def _event(data: dict[str, Any], name: str = "") -> str:
    return f"{name}{DATA}{json.dumps(data, ensure_ascii=False)}\n\n"


def _decoded(events: list[str]) -> list[Any]:
    lines = [line for event in events for line in event.split("\n") if line.startswith(DATA)]
    return [json.loads(line.removeprefix(DATA)) for line in lines]
