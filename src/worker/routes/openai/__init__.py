"""The OpenAI path: which routes there are, and who answers each.

Most are vLLM's own server's, called in process (``forward``); what concerns the worker as a whole
it answers itself (``own``). Not everything that vLLM's server has is safe to expose, or makes sense
without a socket: what is not listed here (speech, development, weight transfer, disaggregation,
loading adapters from a path) is not there.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from worker.chunking import Piece
from worker.engine import Engines
from worker.errors import UnknownRoute, WrongMethod
from worker.job import OpenAIJob
from worker.routes.answer import Answer
from worker.routes.openai import bodies, forward, own
from worker.settings import Settings


@dataclass(frozen=True, slots=True)
class Route:
    """One route: where vLLM's server has it, or what answers it instead."""

    method: str
    path: str
    own: Callable[[OpenAIJob, str, Engines, Settings], Awaitable[Any]] | None = None


async def openapi(_: OpenAIJob, __: str, engines: Engines, ___: Settings) -> dict[str, Any]:
    """Describe ``ROUTES``: those of vLLM's server in its own words, the others in a line."""
    # Each takes a second or two when it is first asked for.
    documents = [await asyncio.to_thread(getattr, each, "schema") for each in engines]
    served = {route.path: route for route in ROUTES.values()}
    lines = {path: _in_a_line(route) for path, route in served.items() if route.own}
    described = {path: told for each in documents for path, told in each["paths"].items()}
    return {
        **documents[0],
        "paths": lines | {path: told for path, told in described.items() if path in served},
        "components": {
            "schemas": {
                name: told
                for each in documents
                for name, told in each["components"]["schemas"].items()
            }
        },
    }


def _in_a_line(route: Route) -> dict[str, Any]:
    told: dict[str, Any] = {
        "summary": (route.own.__doc__ or "").split("\n")[0],
        "responses": {"200": {"description": "Successful Response"}},
    }
    if "{model}" in route.path:
        schema = {"type": "string"}
        told["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": schema}]
    return {route.method.lower(): told}


# By the path as callers may write it, without /v1.
ROUTES = {
    route.path.removeprefix("/v1"): route
    for route in (
        Route("POST", bodies.CHAT),
        Route("POST", "/v1/completions"),
        Route("POST", bodies.RESPONSES),
        Route("POST", bodies.MESSAGES),
        Route("POST", "/v1/messages/count_tokens"),
        Route("POST", "/v1/embeddings"),
        Route("POST", "/score"),
        Route("POST", "/rerank"),
        Route("POST", "/pooling"),
        Route("POST", bodies.TOKENIZE),
        Route("POST", "/detokenize"),
        Route("GET", "/v1/models", own.models),
        Route("GET", "/v1/models/{model}", own.model),
        Route("POST", "/v1/unload_lora_adapter", own.unload_adapter),
        Route("GET", "/version"),
        Route("GET", "/health", own.health),
        Route("GET", "/metrics", own.metrics),
        Route("GET", "/openapi.json", openapi),
        Route("GET", "/chat", own.status),
    )
}


def answer(job: OpenAIJob, request_id: str, engines: Engines, settings: Settings) -> Answer[Any]:
    """Answer a request to one of ``ROUTES``.

    Raises:
        UnknownRoute: there is no such route.
        WrongMethod: there is, but for another method.
    """
    route = _route(job)
    # The platform's gateway loses the method: then it is the route's.
    if job.method is not None and job.method.upper() != route.method:
        raise WrongMethod(f"{route.path} takes {route.method}.")
    if route.own is None:
        body = (job.body or {}) if route.method == "POST" else None
        return forward.answer(job, route.path, body, request_id, engines, settings)
    answering = route.own

    async def pieces() -> AsyncGenerator[Piece[Any], None]:
        yield Piece(await answering(job, request_id, engines, settings), weight=1, size=0)

    return Answer(stream=False, pieces=pieces, render=lambda values: values[0])


def _route(job: OpenAIJob) -> Route:
    path = "/models/{model}" if job.path.startswith(own.MODEL_PREFIX) else job.path
    if path not in ROUTES:
        served = ", ".join(f"{route.method} {route.path}" for route in ROUTES.values())
        raise UnknownRoute(f"There is no route {job.route!r}; this worker serves {served}.")
    return ROUTES[path]
