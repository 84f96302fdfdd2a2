"""Requests to vLLM's own server, called in this process, and its errors as the worker's."""

import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

from worker.asgi import Head
from worker.chunking import Piece
from worker.dialects.openai.bodies import Prepared, prepare
from worker.engine import Engine, Engines
from worker.errors import (
    LONGEST_MESSAGE,
    InternalError,
    NoEngine,
    RefusedByEngine,
    UnknownRoute,
    WorkerError,
    in_settings,
)
from worker.job import OpenAIJob
from worker.record import Usage
from worker.routes import events
from worker.routes.abilities import ability, refuse_unable
from worker.routes.again import unless_begun
from worker.routes.answer import Answer, json_size
from worker.routes.route import Route
from worker.settings import Settings

log = logging.getLogger(__name__)

# Where vLLM's messages begin to tell the refused value, which may be a prompt.
REFUSED_VALUE = (" (parameter=", " [type=", "\n    For further information visit ")


def answer(
    job: OpenAIJob, route: Route, request_id: str, engines: Engines, settings: Settings
) -> Answer[Any]:
    """Return vLLM's answer: pieces are events of a stream, or the one body of any other answer."""
    stream = job.stream and route.streams
    usage = Usage()

    async def pieces() -> AsyncGenerator[Piece[Any], None]:
        engine = _engine_for(route.path, job.body, engines)
        attempt = partial(_pieces, engine, job, route, request_id, settings, usage)
        async with contextlib.aclosing(unless_begun(engine, request_id, attempt)) as found:
            async for piece in found:
                yield piece

    def render(values: list[Any]) -> Any:
        if not stream:
            return values[0]
        return "".join(values) if settings.raw_openai_output else events.decoded(values)

    return Answer(
        stream=stream,
        pieces=pieces,
        render=render,
        render_error=lambda error: render(route.errors.last_events(error)),
        error_keys=route.errors.keys,
        usage=usage,
    )


async def _pieces(
    engine: Engine, job: OpenAIJob, route: Route, request_id: str, settings: Settings, usage: Usage
) -> AsyncGenerator[Piece[Any], None]:
    stream = job.stream and route.streams
    prepared = Prepared(None)
    if route.method == "POST":
        prepared = prepare(job, route, engine, request_id, settings)
        await _adopt_adapter(prepared.body, engine)
    parts = engine.call(route.path, prepared.body, request_id, usage, route.shape)
    async with contextlib.aclosing(parts):
        async for value in _values(parts, request_id):
            if not stream or value.startswith(events.COMPLETED):
                _count(usage, value)
            # Without data, the closing mark has no place in a list of decoded events.
            if settings.raw_openai_output or value != events.DONE:
                best = prepared.best(value)
                weight = events.weight(best) if stream else 1
                yield Piece(best, weight=weight, size=json_size(best))


def _engine_for(path: str, body: dict[str, Any] | None, engines: Engines) -> Engine:
    """Return the engine that has a route; of several, the one of the model in the body.

    Raises:
        NoEngine: the worker only trains.
        UnknownRoute: none has it, or not the model in the body.
    """
    if not engines.serve:
        raise NoEngine
    able = [engine for engine in engines if engine.keys(path) is not None]
    if not able:
        others = "; ".join(ability(engine.model) for engine in engines)
        message = f"No model of this worker answers {path}: {others}."
        if "generate" in engines.main.model.tasks and len([*engines]) == 1:
            message += " A model that embeds can be served beside it: set EMBEDDING_MODEL_NAME."
        raise UnknownRoute(message)
    name = (body or {}).get("model")
    refuse_unable(name, able, engines, path)
    return next((engine for engine in able if name in engine.model.names), able[0])


async def _adopt_adapter(body: Mapping[str, Any] | None, engine: Engine) -> None:
    """Load the adapter that a request names, if it names one.

    Raises:
        WorkerError: there is no such model or adapter, or it can't be loaded.
    """
    name = (body or {}).get("model")
    if isinstance(name, str) and name not in engine.model.names:
        await engine.adopt(name)


async def _values(
    parts: AsyncGenerator[Head | bytes, None], request_id: str
) -> AsyncGenerator[Any, None]:
    """Yield the events of a stream, or the one body of any other answer.

    Raises:
        WorkerError: the answer is an error.
    """
    head = await anext(parts)
    assert isinstance(head, Head)  # for the type checker: the head comes first
    if head.media_type == "text/event-stream":
        held: list[str] = []
        async for event in events.events_in(parts):
            if event.startswith(events.ERRORS):
                raise _refusal(events.error_in(event), None, request_id)
            held.append(event)
            # What only announces may yet be followed by a refusal, or by another engine's events.
            if events.weight(event):
                while held:
                    yield held.pop(0)
        for announcement in held:
            yield announcement
        return
    body = b"".join([part async for part in parts if isinstance(part, bytes)])
    if head.status >= 400:
        refused = json.loads(body)
        # vLLM's, or that of its web framework.
        error = refused.get("error") or {"message": refused.get("detail")}
        raise _refusal(error, head.status, request_id)
    yield json.loads(body) if head.media_type == "application/json" else body.decode()


def _count(usage: Usage, value: Any) -> None:
    """Take the tokens from an answer, or the event that ends a response, if none are known yet."""
    if isinstance(value, str) and value.startswith(events.COMPLETED):
        (completed,) = events.decoded([value])
        value = completed["response"]
    if not isinstance(value, dict) or usage.prompt_tokens is not None:
        return
    if counted := value.get("usage"):
        usage.prompt_tokens = counted.get("prompt_tokens", counted.get("input_tokens"))
        usage.output_tokens = counted.get("completion_tokens", counted.get("output_tokens"))


def _without_value(message: str) -> str:
    for mark in REFUSED_VALUE:
        message = message.partition(mark)[0]
    return message.partition(": {")[0] if message.endswith("}") else message


def _refusal(error: dict[str, Any], status: int | None, request_id: str) -> WorkerError:
    """Return the worker's error for one of vLLM's server; ``status`` is None in a stream."""
    # Anthropic's format has no code.
    code = status or error.get("code") or HTTPStatus.INTERNAL_SERVER_ERROR
    message = in_settings(_without_value(error["message"][:LONGEST_MESSAGE]))
    if code == HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("request %s: vLLM's server answers %s: %s", request_id, code, message)
        return InternalError()
    return RefusedByEngine(message, status=code, param=error.get("param"))
