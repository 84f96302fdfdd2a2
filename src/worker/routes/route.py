"""A route of the table ``ROUTES``, and a request to a route that the worker answers itself."""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from starlette.routing import compile_path

from worker.engine import Engines
from worker.job import OpenAIJob
from worker.limits.inputs import EMPTY_SHAPE, BodyShape
from worker.routes import events
from worker.routes.answer import Answer
from worker.routes.resources import Resources
from worker.settings import Settings

# Changes the conversation in a body. The arguments are the body, the job and SYSTEM_PROMPT.
PrepareConversation = Callable[[dict[str, Any], OpenAIJob, str | None], None]

# Default temperature of chats, if the model's generation_config has none.
DEFAULT_CHAT_TEMPERATURE = 0.7


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """A request to a route that the worker answers itself."""

    job: OpenAIJob
    request_id: str  # the job's id
    resources: Resources
    path_params: dict[str, str]  # by their names in the route

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
    """A route of vLLM's server or of the worker itself.

    Args:
        path: Path of the route, for vLLM's routes the path on its server. ``{name}`` matches one
            segment, ``{name:path}`` any text.
        handler: Function that answers the request in place of vLLM's server.
        streams: Whether the answer to a body with ``stream`` is a stream of events. With a handler,
            whether the answer is a file's content in parts, each of them a yield.
        is_probe: Whether probes request the route, so that it is never refused.
        prepare_conversation: Function that checks and changes the conversation in a body.
        default_temperature: Default temperature, if the model's generation_config has none.
        id_format: Format of the request's id in the body, such as "resp_{}", if vLLM does not read
            the id from a header on this route.
        generate: Function that makes the answer from a generation of the engine, not of its server.
        shape: The keys and features of a body for vLLM's server that limits depend on.
    """

    method: str
    path: str
    handler: Callable[[RouteRequest], Awaitable[Any] | AsyncGenerator[Any, None]] | None = None
    streams: bool = False
    is_probe: bool = False
    prepare_conversation: PrepareConversation | None = None
    default_temperature: float | None = None
    id_format: str | None = None
    error_format: events.ErrorFormat = events.OPENAI_ERRORS
    generate: Callable[[RouteRequest], Answer[Any]] | None = None
    shape: BodyShape = EMPTY_SHAPE

    @property
    def name(self) -> str:
        """The method and the path, such as "GET /v1/files/{id}"."""
        return f"{self.method} {self.path_template}"

    @property
    def path_template(self) -> str:
        """The path as the OpenAPI document displays it: ``{name}`` in place of ``{name:path}``."""
        return _compile_path(self.path)[1]

    def match_path(self, path: str) -> dict[str, str] | None:
        """Return the parameters in a path without /v1, or None if the path does not match."""
        match = _compile_path(self.path.removeprefix("/v1"))[0].match(path)
        return match and match.groupdict()


@cache
def _compile_path(path: str) -> tuple[re.Pattern[str], str]:
    pattern, template, _ = compile_path(path)
    return pattern, template
