"""The table of all OpenAI and LLM Engine routes, and the dispatch of requests to them.

Routes without ``handler`` and ``generate`` belong to vLLM's own server, which is called in this
process (``forward``). The worker itself answers all other routes: by a handler, or with one
generation of the engine. Routes of vLLM's server that are missing from the table are not served:
they are not safe to expose, or useless without a socket (speech, development, weight transfer,
disaggregation, loading adapters from a path).
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from prometheus_client import REGISTRY, generate_latest

from worker.dialects import llm_engine, openai
from worker.dialects.openai import forward
from worker.errors import EngineDead, EngineSuspended, NoEngine, UnknownRoute, WrongMethod
from worker.job import OpenAIJob
from worker.metrics import MergedRegistries
from worker.routes import events
from worker.routes.answer import Answer, Slot, answer_by_worker, answer_with_file
from worker.routes.resources import Resources
from worker.routes.route import DEFAULT_CHAT_TEMPERATURE, Route, RouteRequest
from worker.settings import Settings
from worker.validation import find_similar_names
from worker.volume.ids import VolumeLocation

NOT_STARTED = {"status": "not started", "message": "You need to start the service first."}


async def health(request: RouteRequest) -> dict[str, Any]:
    """Report whether the main engine is alive, and the state of each engine."""
    if request.engines.base_model.is_dead:
        raise EngineDead
    if request.engines.base_model.is_suspended:
        raise EngineSuspended
    states = {
        base.model.names[0]: "starting" if base.is_dead else "ready"
        for base in request.engines.base_models
    }
    return {"status": "ok", "models": states}


async def metrics(request: RouteRequest) -> str:
    """Return the metrics of the process and of each engine in Prometheus' text format."""
    registries = [REGISTRY, *(engine.metrics for engine in request.engines)]
    return generate_latest(MergedRegistries(registries)).decode()


async def describe_served_model(request: RouteRequest) -> dict[str, Any]:
    """Describe the served model in the format of the Model Serving API."""
    base, settings = request.engines.base_model, request.settings
    if base.is_dead:
        return NOT_STARTED
    model, endpoint = base.model, settings.runpod_endpoint_id
    location = VolumeLocation.from_settings(settings)
    url = f"{settings.runpod_endpoint_base_url}/{endpoint}/openai/v1"
    temperature = DEFAULT_CHAT_TEMPERATURE if model.temperature is None else model.temperature
    return {
        "status": "running",
        "llm_serving_url": url if endpoint else None,
        "model_name": model.names[0],
        "max_new_tokens": model.max_new_tokens or model.max_model_len,
        "device": model.device,
        "do_sample": temperature > 0,
        "system_prompt": settings.system_prompt,
        "network_volume": location.id,
        "data_center": location.data_center,
    }


# Title of the OpenAPI document. The title of vLLM's own document names its web framework.
TITLE = "LLM worker"


async def openapi_document(request: RouteRequest) -> dict[str, Any]:
    """Describe ``ROUTES``: those of vLLM's server in full, the others with a summary."""
    if not request.engines.has_engine:
        raise NoEngine
    # In a thread, since an engine needs one to two seconds to build its document.
    documents = [
        await asyncio.to_thread(getattr, engine, "openapi_schema") for engine in request.engines
    ]
    routes = _enabled_routes(request.settings)
    paths: dict[str, Any] = {}
    for route in routes:
        function = route.handler or route.generate
        if function is None:
            continue
        operation: dict[str, Any] = {
            "summary": (function.__doc__ or "").split("\n")[0],
            "responses": {"200": {"description": "Successful Response"}},
        }
        if names := re.findall(r"{(\w+)}", route.path_template):
            operation["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in names
            ]
        paths.setdefault(route.path_template, {})[route.method.lower()] = operation
    schemas: dict[str, Any] = {}
    known_paths = {route.path for route in routes}
    for document in documents:
        paths |= {path: item for path, item in document["paths"].items() if path in known_paths}
        schemas |= document["components"]["schemas"]
    info = {**documents[0]["info"], "title": TITLE}
    return {**documents[0], "info": info, "paths": paths, "components": {"schemas": schemas}}


ROUTES = (
    *openai.ROUTES,
    *llm_engine.ROUTES,
    Route("GET", "/version"),
    Route("GET", "/health", health, is_probe=True),
    Route("GET", "/metrics", metrics, is_probe=True),
    Route("GET", "/openapi.json", openapi_document),
    Route("GET", "/chat", describe_served_model),
)


# Reasons why parts of OpenAI's and Anthropic's APIs are not served, by the beginnings of paths.
UNSERVED_PATHS = {
    "/ping": "only --serve answers it; /health also exists on a queue",
    "/audio/": "speech is not served",
    "/realtime": "speech is not served",
    "/images/": "images are not generated",
    "/videos": "videos are not generated",
    "/moderations": "texts are not moderated",
    "/conversations": "conversations are not stored",
    "/assistants": "assistants are not served",
    "/threads": "assistants are not served",
    "/vector_stores": "vector stores are not served",
    "/uploads": "uploads in parts are not served; send the file to /v1/files",
    "/messages/batches": "Anthropic's batches are not served; /v1/batches also takes /v1/messages",
}

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


def find_enabled_route(job: OpenAIJob, settings: Settings) -> Route | None:
    """Return the route with the path and the method of a job; None if it is disabled."""
    route = find_route(job)
    is_found = route and route.method == job.method and route.name not in settings.disabled
    return route if is_found else None


@dataclass(frozen=True, slots=True)
class RequestDescription:
    """A job's request, without the caller's text."""

    route: str  # the job's kind, or its route's path with the names of the parameters
    is_stream: bool
    # Keys next to ``error`` in the body of an error, such as ``{"type": "error"}``
    error_keys: Mapping[str, str] = field(default_factory=dict)


def describe_request(job: OpenAIJob) -> RequestDescription:
    """Describe a job with a request to a route, which may be unknown."""
    route = find_route(job)
    if route is None:
        is_anthropic = job.path.startswith("/messages/")
        error_format = events.ANTHROPIC_ERRORS if is_anthropic else events.OPENAI_ERRORS
        return RequestDescription("unknown", False, error_format.keys)
    is_stream = job.stream or (route.generate is not None and route.streams)
    return RequestDescription(route.path_template, is_stream, route.error_format.keys)


def _enabled_routes(settings: Settings) -> list[Route]:
    return [route for route in ROUTES if route.name not in settings.disabled]


def _select_route(job: OpenAIJob, settings: Settings) -> Route:
    route = find_route(job)
    if route is None:
        routes = _enabled_routes(settings)
        message = f"There is no route {job.route!r}"
        for start, reason in UNSERVED_PATHS.items():
            if job.path.startswith(start):
                raise UnknownRoute(f"{message}: {reason}.")
        advised = {other.path_template: other.method for other in routes if other.handler is None}
        for similar in find_similar_names(job.path, advised):
            raise UnknownRoute(f"{message}: did you mean {advised[similar]} {similar}?")
        has_list = any(other.handler is openapi_document for other in routes)
        raise UnknownRoute(
            f"{message}{'; GET /openapi.json lists all routes' if has_list else ''}."
        )
    if job.method is not None and job.method.upper() != route.method:
        methods = [
            other.method
            for other in _enabled_routes(settings)
            if other.match_path(job.path) is not None
        ]
        if methods:
            raise WrongMethod(f"{route.path_template} takes {' and '.join(methods)}.")
    if route.name in settings.disabled:
        raise UnknownRoute(f"There is no route {job.route!r}: DISABLED_ROUTES disables it.")
    if job.method is None and not job.body and route.method == "POST" and route.handler is None:
        # The platform's gateway sends the same job for a GET as for a POST without a body.
        raise WrongMethod(f"{route.path_template} takes POST with a body.")
    return route


def make_answer(job: OpenAIJob, request_id: str, resources: Resources) -> Answer[Any]:
    """Return the answer to a request to one of ``ROUTES``."""
    engines, settings = resources.engines, resources.settings
    route = _select_route(job, settings)
    request = RouteRequest(job, request_id, resources, route.match_path(job.path) or {})
    if route.generate:
        return route.generate(request)
    if route.handler:
        call: Callable[[], Any] = partial(route.handler, request)
        if route.streams:
            return answer_with_file(call)
        return answer_by_worker(call, slot=None if route.is_probe else Slot.WORKER)
    return forward.make_answer(job, route, request_id, engines, settings)
