"""Routes that report the worker's state to its operator.

The first line of a route's docstring is its summary in /openapi.json.
"""

from typing import Any

from prometheus_client import REGISTRY, generate_latest

from worker.errors import EngineDead, EngineSuspended
from worker.metrics import MergedRegistries
from worker.routes.route import DEFAULT_CHAT_TEMPERATURE, RouteRequest
from worker.volume.location import VolumeLocation

NOT_STARTED = {"status": "not started", "message": "You need to start the service first."}


async def health(request: RouteRequest) -> dict[str, Any]:
    """Report whether the main engine is alive, and the state of each engine.

    Raises:
        EngineSuspended, EngineDead: The main engine can't answer.
    """
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
