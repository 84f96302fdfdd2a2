"""A route of the OpenAI path: a row of ``ROUTES``, with all in which routes differ."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from worker.engine import Engines
from worker.job import OpenAIJob
from worker.routes.openai import conversations, events
from worker.settings import Settings

# The default of chats, where the model has none.
CHAT_TEMPERATURE = 0.7


@dataclass(frozen=True, slots=True)
class Route:
    """One route, of vLLM's server or of the worker's own.

    Args:
        method: "GET" or "POST".
        path: where vLLM's server has it.
        own: answers the request in place of vLLM's server; all below is for that server's routes.
        streams: whether a body with ``stream`` is answered by events.
        complete: completes the conversation in a body.
        temperature: the default, where the model's generation_config has none.
        response_id: the id for the body, where vLLM does not take it from a header: "resp_{}".
        errors: how clients of the route look for errors.
    """

    method: str
    path: str
    own: Callable[[OpenAIJob, str, Engines, Settings], Awaitable[Any]] | None = None
    streams: bool = False
    complete: conversations.Complete = conversations.none
    temperature: float | None = None
    response_id: str | None = None
    errors: events.ErrorFormat = events.OPENAI

    def matches(self, path: str) -> bool:
        """Return whether a path without /v1 is this route's: a parameter at its end is any text."""
        fixed, parameter, _ = self.path.removeprefix("/v1").partition("{")
        return path.startswith(fixed) if parameter else path == fixed
