"""The OpenAI path: the table of its routes, and who answers them.

Most are routes of vLLM's own server, called in this process (``forward``). Those that concern the
worker as a whole it answers itself, and some with one generation of the engine. Routes of
vLLM's server that are not in the table are not served: they are not safe to expose, or make no
sense without a socket (speech, development, weight transfer, disaggregation, loading adapters from
a path).
"""

import asyncio
import difflib
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from worker.dialects import llm_engine, monitoring, openai
from worker.dialects.openai import forward
from worker.errors import NoEngine, UnknownRoute, WrongMethod
from worker.job import OpenAIJob
from worker.routes.answer import Answer, answer_by_worker, answer_in_parts
from worker.routes.resources import Resources
from worker.routes.route import Asked, Route
from worker.settings import Settings

# Of the document that describes the routes: vLLM's own has the name of its web framework.
TITLE = "LLM worker"


async def openapi(asked: Asked) -> dict[str, Any]:
    """Describe ``ROUTES``: those of vLLM's server in its own words, the others in a line.

    Raises:
        NoEngine: this worker only trains, and has no document of vLLM's.
    """
    if not asked.engines.serve:
        raise NoEngine
    # An engine needs a second or two to build its document.
    documents = [await asyncio.to_thread(getattr, engine, "schema") for engine in asked.engines]
    served = _served(asked.settings)
    paths: dict[str, Any] = {}
    for route in served:
        if route.own or route.generate:
            paths.setdefault(route.template, {}).update(_in_a_line(route))
    schemas: dict[str, Any] = {}
    known = {route.path for route in served}
    for document in documents:
        paths |= {path: item for path, item in document["paths"].items() if path in known}
        schemas |= document["components"]["schemas"]
    info = {**documents[0]["info"], "title": TITLE}
    return {**documents[0], "info": info, "paths": paths, "components": {"schemas": schemas}}


def _in_a_line(route: Route) -> dict[str, Any]:
    """Return the OpenAPI path item of a route that is not vLLM's."""
    operation: dict[str, Any] = {
        "summary": ((route.own or route.generate).__doc__ or "").split("\n")[0],
        "responses": {"200": {"description": "Successful Response"}},
    }
    if names := re.findall(r"{(\w+)}", route.template):
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    return {route.method.lower(): operation}


ROUTES = (
    *openai.ROUTES,
    *llm_engine.ROUTES,
    Route("GET", "/version"),
    Route("GET", "/health", monitoring.health),
    Route("GET", "/metrics", monitoring.metrics),
    Route("GET", "/openapi.json", openapi),
    Route("GET", "/chat", monitoring.status),
)


# The routes of each path without parameters, as jobs name it: most requests match no pattern then.
_PLAIN = {
    path: [route for route in ROUTES if route.match(path) is not None]
    for path in (route.path.removeprefix("/v1") for route in ROUTES)
    if "{" not in path
}


def find(job: OpenAIJob) -> Route | None:
    """Return the route of a job's path, if there is one: of several, the one of its method."""
    # The platform's gateway does not pass the method on.
    method = (job.method or ("POST" if job.body else "GET")).upper()
    found = _PLAIN.get(job.path) or [route for route in ROUTES if route.match(job.path) is not None]
    return next((route for route in found if route.method == method), found[0] if found else None)


def _served(settings: Settings) -> list[Route]:
    return [route for route in ROUTES if route.path not in settings.disabled_routes]


def _instead(path: str, settings: Settings) -> str:
    """Return the end of a sentence: the route of vLLM's that was probably meant, or all routes."""
    served = _served(settings)
    vllms = {route.template: _name(route) for route in served if route.own is None}
    for near in difflib.get_close_matches(path, vllms, n=1, cutoff=0.75):
        return f": did you mean {vllms[near]}?"
    return f"; this worker serves {', '.join(map(_name, served))}."


def _name(route: Route) -> str:
    return f"{route.method} {route.template}"


def answer(job: OpenAIJob, request_id: str, resources: Resources) -> Answer[Any]:
    """Answer a request to one of ``ROUTES``.

    Raises:
        UnknownRoute: there is no such route, or it is disabled.
        WrongMethod: there is, but for another method.
    """
    engines, settings = resources.engines, resources.settings
    route = find(job)
    if route is None or route not in _served(settings):
        raise UnknownRoute(f"There is no route {job.route!r}{_instead(job.path, settings)}")
    if job.method is not None and job.method.upper() != route.method:
        methods = [row.method for row in ROUTES if row.match(job.path) is not None]
        raise WrongMethod(f"{route.template} takes {' and '.join(methods)}.")
    asked = Asked(job, request_id, resources, route.match(job.path) or {})
    if route.generate:
        return route.generate(asked)
    if route.own:
        answering: Callable[[], Any] = partial(route.own, asked)
        made = answer_in_parts(answering) if route.streams else answer_by_worker(answering)
        return replace(made, error_keys=route.errors.keys)
    return forward.answer(job, route, request_id, engines, settings)
