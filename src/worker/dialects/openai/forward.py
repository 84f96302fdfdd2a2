"""Forwards requests to vLLM's own server in this process, and translates its errors.

An engine that serves the route is chosen, the body is prepared for it (``bodies``), and vLLM's app
is called. Its response becomes pieces: the events of a stream, or the whole body. Until a stream
has content, its request may still be refused, or run again on a new engine.
"""

import contextlib
import json
import logging
from collections import deque
from collections.abc import AsyncGenerator
from functools import partial
from http import HTTPStatus
from typing import Any

from worker.asgi import ResponseHead
from worker.bridge import pass_item
from worker.chunking import Piece, current_schedule
from worker.dialects.openai.bodies import prepare_body
from worker.engine import Engine, Engines
from worker.errors import (
    MAX_MESSAGE_LENGTH,
    InternalError,
    NoEngine,
    RefusedByEngine,
    UnknownRoute,
    WorkerError,
    replace_options_by_settings,
)
from worker.job import OpenAIJob
from worker.json_lines import escape_line_breaks
from worker.record import Usage
from worker.routes import events
from worker.routes.answer import Answer, json_size, retry_before_first_piece
from worker.routes.models import check_model_ability, describe_ability
from worker.routes.route import Route
from worker.settings import Settings

log = logging.getLogger(__name__)

# Strings in vLLM's messages that precede the refused value, which may be a prompt.
REFUSED_VALUE_MARKERS = (" (parameter=", " [type=", "\n    For further information visit ")


def make_answer(
    job: OpenAIJob, route: Route, request_id: str, engines: Engines, settings: Settings
) -> Answer[Any]:
    """Return vLLM's answer: its pieces are the events of a stream, or the body of a response."""
    is_stream = job.stream and route.streams
    usage = Usage()

    async def pieces() -> AsyncGenerator[Piece[Any], None]:
        engine = _choose_engine(route.path, job.body, engines)
        call = partial(_call_engine, engine, job, route, request_id, settings, usage)
        async with contextlib.aclosing(retry_before_first_piece(engine, request_id, call)) as parts:
            async for piece in parts:
                yield piece

    def render(values: list[Any]) -> Any:
        if not is_stream:
            return values[0]
        return "".join(values) if settings.raw_openai_output else events.decode_event_data(values)

    return Answer(
        stream=is_stream,
        pieces=pieces,
        render=render,
        render_error=lambda error: render(route.error_format.make_last_events(error)),
        render_receipt=(lambda receipt: render(route.error_format.make_receipt_events(receipt)))
        if is_stream
        else None,
        merges_outputs=(job.stream_events or settings.stream_events) == "chunk",
        usage=usage,
    )


async def _call_engine(
    engine: Engine, job: OpenAIJob, route: Route, request_id: str, settings: Settings, usage: Usage
) -> AsyncGenerator[Piece[Any], None]:
    is_stream = job.stream and route.streams
    body = ranking = None
    if route.method == "POST":
        body, ranking = prepare_body(job, route, engine, request_id, settings)
        name = body["model"]
        if isinstance(name, str) and name not in engine.model.names:
            await engine.load_adapter(name)
    pass_piece = pass_item.get(None)
    splitter = events.EventSplitter()
    has_begun = False
    # Weights of the events that wait to be yielded. They are known only when vLLM sends an event.
    weights: deque[int] = deque()

    def take_part(part: bytes, is_next: bool) -> bool:
        """Pass an inner event of a stream that has begun directly to the stream's reader."""
        if has_begun and is_next and pass_piece and (event := splitter.decode_inner_event(part)):
            pass_piece(_to_piece(event, _weigh(event)))
            return True
        if is_stream:
            texts = part.decode(errors="replace").split(events.EVENT_END)[:-1]
            weights.extend(_weigh(text + events.EVENT_END) for text in texts)
        return False

    parts = engine.call(route.path, body, request_id, usage, route.shape, take_part)
    async with contextlib.aclosing(parts):
        async for value in _read_response(parts, splitter, request_id):
            weight = weights.popleft() if is_stream and weights else 1
            if not is_stream or value.startswith(events.COMPLETED_PREFIXES):
                _set_token_counts(usage, value)
            # The closing event has no JSON data, so it is omitted from a list of decoded events. A
            # receipt precedes it.
            if value != events.DONE_EVENT or (settings.raw_openai_output and not job.receipt):
                yield _to_piece(ranking.select_best(value) if ranking else value, weight)
                has_begun = has_begun or (is_stream and events.has_content(value))


def _weigh(event: str) -> int:
    if not events.has_content(event):
        return 0
    schedule = current_schedule.get(None)
    return schedule.take_event_weight() if schedule else 1


def _to_piece(value: Any, weight: int) -> Piece[Any]:
    return Piece(value, weight=weight, size=json_size(value))


def _choose_engine(path: str, body: dict[str, Any] | None, engines: Engines) -> Engine:
    """Return the engine that serves a route; if several do, the one with the body's model."""
    if not engines.has_engine:
        raise NoEngine
    able_engines = [engine for engine in engines if engine.body_keys(path) is not None]
    if not able_engines:
        abilities = "; ".join(describe_ability(engine.model) for engine in engines)
        message = f"No model of this worker answers {path}: {abilities}."
        if "generate" in engines.main_engine.model.tasks and len([*engines]) == 1:
            message += " To serve an embedding model in addition, set EMBEDDING_MODEL_NAME."
        raise UnknownRoute(message)
    name = (body or {}).get("model")
    check_model_ability(name, able_engines, engines, path)
    return next((engine for engine in able_engines if name in engine.model.names), able_engines[0])


async def _read_response(
    parts: AsyncGenerator[ResponseHead | bytes, None],
    splitter: events.EventSplitter,
    request_id: str,
) -> AsyncGenerator[Any, None]:
    """Yield the events of a stream, or the body of any other response; raise a response's error."""
    head = await anext(parts)
    assert isinstance(head, ResponseHead)  # For the type checker.
    body_parts = (part async for part in parts if isinstance(part, bytes))
    if head.media_type != "text/event-stream":
        body = b"".join([part async for part in body_parts])
        if head.status >= 400:
            error_body = json.loads(body)
            # The error has vLLM's format, or the format of its web framework.
            error = error_body.get("error") or {"message": error_body.get("detail")}
            raise _translate_error(error, head.status, request_id)
        yield json.loads(body) if head.media_type == "application/json" else body.decode()
        return
    announcements: list[str] = []
    has_begun = False
    async for part in body_parts:
        for event in splitter.split_part(part):
            if event.startswith(events.ERROR_PREFIXES):
                raise _translate_error(events.parse_error(event), None, request_id)
            announcements.append(events.name_incomplete(event))
            # Events without content are withheld until content arrives. Until then, the server may
            # refuse the request, or the engine may die, after which the answer is restarted.
            has_begun = has_begun or events.has_content(event)
            while has_begun and announcements:
                yield announcements.pop(0)
    for event in announcements:
        yield event
    if splitter.incomplete:
        yield escape_line_breaks(splitter.incomplete.decode())


def _set_token_counts(usage: Usage, answer: Any) -> None:
    """Set the token counts from a response or the event that completes it, unless already set."""
    if isinstance(answer, str) and answer.startswith(events.COMPLETED_PREFIXES):
        (completed,) = events.decode_event_data([answer])
        answer = completed["response"]
    if not isinstance(answer, dict) or usage.prompt_tokens is not None:
        return
    if counts := answer.get("usage"):
        usage.prompt_tokens = counts.get("prompt_tokens", counts.get("input_tokens"))
        usage.output_tokens = counts.get("completion_tokens", counts.get("output_tokens"))


def _translate_error(error: dict[str, Any], status: int | None, request_id: str) -> WorkerError:
    """Convert an error of vLLM's server; ``status`` is None for an event of a stream."""
    # Anthropic's error format has no code.
    code = status or error.get("code") or HTTPStatus.INTERNAL_SERVER_ERROR
    message = error["message"][:MAX_MESSAGE_LENGTH]
    for marker in REFUSED_VALUE_MARKERS:
        message = message.partition(marker)[0]
    if message.endswith("}"):
        message = message.partition(": {")[0]
    message = replace_options_by_settings(message)
    if code == HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("request %s: vLLM's server answers %s: %s", request_id, code, message)
        return InternalError()
    return RefusedByEngine(message, status=code, param=error.get("param"))
