"""The OpenAI path: vLLM's own server, called in process; which of its routes, this file says."""

import contextlib
import json
import re
from collections.abc import AsyncGenerator
from typing import Any

from worker import asgi
from worker.chunking import Piece
from worker.engine import Engine
from worker.errors import EngineDead, RefusedByEngine, UnknownRoute, WorkerError
from worker.job import OpenAIJob
from worker.routes.answer import Answer, json_size
from worker.settings import Settings

# What callers may reach, without /v1, and where vLLM's server has it. Not everything that
# server has is safe to expose: development, weight transfer and adapter routes stay inside.
ROUTES = {
    "/chat/completions": "/v1/chat/completions",
    "/completions": "/v1/completions",
    "/models": "/v1/models",
}

EVENT_END = b"\n\n"
ERROR_EVENT = 'data: {"error"'
# What vLLM's messages go on with: the refused value, which may be a prompt.
REFUSED_VALUE = re.compile(
    r" \(parameter=[\w.]+(, value=.*)?\)$"
    r"| \[type=\w+, input_value=.*?\]$"
    r"|\n    For further information visit .*$"
    r"|: \{.*\}$",
    re.DOTALL | re.MULTILINE,
)
DONE = "data: [DONE]\n\n"


def answer(job: OpenAIJob, request_id: str, engine: Engine, settings: Settings) -> Answer[Any]:
    if job.path not in ROUTES:
        served = ", ".join(ROUTES.values())
        raise UnknownRoute(f"There is no route {job.route!r}; this worker serves {served}.")
    body = json.dumps(job.body).encode() if job.method == "POST" else b""
    request = asgi.Request(job.method, ROUTES[job.path], body, request_id)

    async def pieces() -> AsyncGenerator[Piece[Any], None]:
        async with contextlib.aclosing(asgi.call(engine.app, request)) as parts:
            async for value in _values(parts, job, engine):
                # The closing mark holds no data: it has no place in a list of decoded events.
                if settings.raw_openai_output or value != DONE:
                    yield Piece(value, weight=1, size=json_size(value))

    def render(values: list[Any]) -> Any:
        if not job.stream:
            return values[0]
        return "".join(values) if settings.raw_openai_output else _decoded(values)

    end = [DONE] if settings.raw_openai_output else []
    return Answer(
        stream=job.stream,
        pieces=pieces,
        render=render,
        render_error=lambda body: render([_error_event(body), *end]),
    )


async def _values(
    parts: AsyncGenerator[asgi.Head | bytes, None], job: OpenAIJob, engine: Engine
) -> AsyncGenerator[Any, None]:
    """Yield whole SSE events of a stream, or the one body of any other answer.

    Raises:
        WorkerError: vLLM's server answered with an error instead.
    """
    head = await anext(parts)
    assert isinstance(head, asgi.Head)  # for the type checker: the head comes first
    if head.media_type == "text/event-stream":
        async for event in _events(parts):
            if event.startswith(ERROR_EVENT):
                raise _refusal_in(event, engine)
            yield event
        return
    body = b"".join([part async for part in parts if isinstance(part, bytes)])
    if head.status >= 400:
        told = json.loads(body)
        # The web framework's own refusals (no such method) have a detail and no error.
        error = told.get("error") or {"message": f"{job.method} {job.route}: {told.get('detail')}"}
        raise _refusal(error, head.status, engine)
    yield json.loads(body) if head.media_type == "application/json" else body.decode()


async def _events(parts: AsyncGenerator[asgi.Head | bytes, None]) -> AsyncGenerator[str, None]:
    """Cut a body into SSE events; vLLM sends one a part today, but promises nothing."""
    rest = b""
    async for part in parts:
        assert isinstance(part, bytes)  # for the type checker: there is one head
        *events, rest = (rest + part).split(EVENT_END)
        for event in events:
            yield (event + EVENT_END).decode()
    if rest:
        yield rest.decode()


def _refusal(error: dict[str, Any], status: int, engine: Engine) -> WorkerError:
    """Make the worker's error of what vLLM's server says, or its web framework below it."""
    if engine.dead:
        return EngineDead()
    message = REFUSED_VALUE.sub("", error["message"])
    return RefusedByEngine(message, status=status, param=error.get("param"))


def _refusal_in(event: str, engine: Engine) -> WorkerError:
    error = json.loads(event.removeprefix("data: "))["error"]
    return _refusal(error, error["code"], engine)


def _error_event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


def _decoded(events: list[str]) -> list[Any]:
    data = [line for event in events for line in event.split("\n") if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in data]
