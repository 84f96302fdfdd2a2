"""A route of the OpenAI path: a row of ``ROUTES``, with all in which routes differ."""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from starlette.routing import compile_path

from worker.engine import Engines
from worker.job import OpenAIJob
from worker.limits.shapes import NONE, Shape
from worker.routes import events
from worker.routes.answer import Answer
from worker.routes.resources import Resources
from worker.settings import Settings

# Changes the body of a request; the last argument is SYSTEM_PROMPT.
Complete = Callable[[dict[str, Any], OpenAIJob, str | None], None]

# The default of chats, where the model has none.
CHAT_TEMPERATURE = 0.7


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to a route that the worker answers itself.

    Args:
        job: the request.
        request_id: the job's id.
        resources: what it can be answered with.
        parameters: the texts in the path, by their names in the route's.
    """

    job: OpenAIJob
    request_id: str
    resources: Resources
    parameters: dict[str, str]

    @property
    def body(self) -> dict[str, Any]:
        return self.job.body or {}

    @property
    def engines(self) -> Engines:
        return self.resources.engines

    @property
    def settings(self) -> Settings:
        return self.resources.settings


@dataclass(frozen=True, slots=True)
class Route:
    """One route, of vLLM's server or of the worker's own.

    Args:
        method: "GET", "POST", "PUT" or "DELETE".
        path: where vLLM's server has it. ``{name}`` is a part of it, ``{name:path}`` any text.
        shape: what a body for vLLM's server holds.
        own: answers the request in place of vLLM's server.
        streams: whether a body with ``stream`` is answered by events; of the worker's own, whether
            the answer comes in parts, each a yield.
        complete: completes the conversation in a body.
        temperature: the default, where the model's generation_config has none.
        response_id: the id for the body, where vLLM does not take it from a header: "resp_{}".
        errors: how clients of the route look for errors.
        generate: makes the answer out of one generation of the engine, without vLLM's server.
    """

    method: str
    path: str
    own: Callable[[Asked], Awaitable[Any] | AsyncGenerator[Any, None]] | None = None
    streams: bool = False
    complete: Complete | None = None
    temperature: float | None = None
    response_id: str | None = None
    errors: events.ErrorFormat = events.OPENAI
    generate: Callable[[Asked], Answer[Any]] | None = None
    shape: Shape = NONE

    @property
    def template(self) -> str:
        """The path as documents show it."""
        return compile_path(self.path)[1]

    def match(self, path: str) -> dict[str, str] | None:
        """Return the parameters in a path without /v1; None: it is not this route's."""
        found = _pattern(self.path).match(path)
        return found and found.groupdict()


@cache
def _pattern(path: str) -> re.Pattern[str]:
    return compile_path(path.removeprefix("/v1"))[0]
