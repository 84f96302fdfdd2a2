"""The table of all OpenAI and LLM Engine routes, and the dispatch of requests to them.

Routes without ``handler`` and ``generate`` belong to vLLM's own server, which is called in this
process (``forward``). The worker itself answers all other routes: by a handler, or with one
generation of the engine. Routes of vLLM's server that are missing from the table are not served:
they are not safe to expose, or useless without a socket (speech, development, weight transfer,
disaggregation, loading adapters from a path).
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
from worker.routes.route import Route, RouteRequest
from worker.settings import Settings

# Title of the OpenAPI document. The title of vLLM's own document names its web framework.
TITLE = "LLM worker"


async def openapi_document(request: RouteRequest) -> dict[str, Any]:
    """Describe ``ROUTES``: those of vLLM's server in full, the others with a summary.

    Raises:
        NoEngine: This worker only trains, so that it has no document from vLLM.
    """
    if not request.engines.has_engine:
        raise NoEngine
    # In a thread, since an engine needs one to two seconds to build its document.
    documents = [
        await asyncio.to_thread(getattr, engine, "openapi_schema") for engine in request.engines
    ]
    routes = _enabled_routes(request.settings)
    paths: dict[str, Any] = {}
    for route in routes:
        if route.handler or route.generate:
            paths.setdefault(route.path_template, {}).update(_path_item(route))
    schemas: dict[str, Any] = {}
    known_paths = {route.path for route in routes}
    for document in documents:
        paths |= {path: item for path, item in document["paths"].items() if path in known_paths}
        schemas |= document["components"]["schemas"]
    info = {**documents[0]["info"], "title": TITLE}
    return {**documents[0], "info": info, "paths": paths, "components": {"schemas": schemas}}


def _path_item(route: Route) -> dict[str, Any]:
    """Return the OpenAPI path item of a route that vLLM's server does not have."""
    operation: dict[str, Any] = {
        "summary": ((route.handler or route.generate).__doc__ or "").split("\n")[0],
        "responses": {"200": {"description": "Successful Response"}},
    }
    if names := re.findall(r"{(\w+)}", route.path_template):
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
    Route("GET", "/openapi.json", openapi_document),
    Route("GET", "/chat", monitoring.describe_served_model),
)


# Routes by path, for paths without parameters: most requests are routed without a pattern.
_ROUTES_BY_PATH = {
    path: [route for route in ROUTES if route.match_path(path) is not None]
    for path in (route.path.removeprefix("/v1") for route in ROUTES)
    if "{" not in path
}


def find_route(job: OpenAIJob) -> Route | None:
    """Return the route of a job's path and, if possible, its method; None for an unknown path."""
    # The platform's gateway does not forward the method, so that it is derived from the body.
    method = (job.method or ("POST" if job.body else "GET")).upper()
    found = _ROUTES_BY_PATH.get(job.path) or [
        route for route in ROUTES if route.match_path(job.path) is not None
    ]
    return next((route for route in found if route.method == method), found[0] if found else None)


def _enabled_routes(settings: Settings) -> list[Route]:
    return [route for route in ROUTES if route.path not in settings.disabled_routes]


def _suggest_routes(path: str, settings: Settings) -> str:
    """Return the end of an error message: the most similar route of an engine, or all routes."""
    routes = _enabled_routes(settings)
    names = {
        route.path_template: _describe_route(route) for route in routes if route.handler is None
    }
    for similar in difflib.get_close_matches(path, names, n=1, cutoff=0.75):
        return f": did you mean {names[similar]}?"
    return f"; this worker serves {', '.join(map(_describe_route, routes))}."


def _describe_route(route: Route) -> str:
    return f"{route.method} {route.path_template}"


def make_answer(job: OpenAIJob, request_id: str, resources: Resources) -> Answer[Any]:
    """Return the answer to a request to one of ``ROUTES``.

    Raises:
        UnknownRoute: There is no such route, or it is disabled.
        WrongMethod: The route exists, but takes another method.
    """
    engines, settings = resources.engines, resources.settings
    route = find_route(job)
    if route is None or route not in _enabled_routes(settings):
        raise UnknownRoute(f"There is no route {job.route!r}{_suggest_routes(job.path, settings)}")
    if job.method is not None and job.method.upper() != route.method:
        methods = [
            matching.method for matching in ROUTES if matching.match_path(job.path) is not None
        ]
        raise WrongMethod(f"{route.path_template} takes {' and '.join(methods)}.")
    request = RouteRequest(job, request_id, resources, route.match_path(job.path) or {})
    if route.generate:
        return route.generate(request)
    if route.handler:
        call: Callable[[], Any] = partial(route.handler, request)
        handler_answer = answer_in_parts(call) if route.streams else answer_by_worker(call)
        return replace(handler_answer, error_keys=route.error_format.keys)
    return forward.make_answer(job, route, request_id, engines, settings)
