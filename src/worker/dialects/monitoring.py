"""Routes that say how the worker is, to those who operate it.

The first line of a docstring is what /openapi.json has of the route.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Metric, generate_latest

from worker.errors import EngineAside, EngineDead
from worker.routes.route import CHAT_TEMPERATURE, Asked

NOT_STARTED = {"status": "not started", "message": "You need to start the service first."}


async def health(asked: Asked) -> dict[str, Any]:
    """Tell whether the model answers, and how each engine is.

    Raises:
        EngineAside, EngineDead: it does not.
    """
    if asked.engines.base.dead:
        raise EngineDead
    if asked.engines.base.is_aside:
        raise EngineAside
    states = {
        base.model.names[0]: "starting" if base.dead else "ready" for base in asked.engines.bases
    }
    return {"status": "ok", "models": states}


async def metrics(asked: Asked) -> str:
    """Return what is counted, of the process and of each engine, in Prometheus' text format."""
    registries = [REGISTRY, *(engine.metrics for engine in asked.engines)]
    return generate_latest(_Merged(registries)).decode()


async def status(asked: Asked) -> dict[str, Any]:
    """Tell what is served, in the words of the Model Serving API."""
    base, settings = asked.engines.base, asked.settings
    if base.dead:
        return NOT_STARTED
    model, endpoint = base.model, settings.runpod_endpoint_id
    url = f"{settings.runpod_endpoint_base_url}/{endpoint}/openai/v1"
    temperature = CHAT_TEMPERATURE if model.temperature is None else model.temperature
    return {
        "status": "running",
        "llm_serving_url": url if endpoint else None,
        "model_name": model.names[0],
        "max_new_tokens": model.max_new_tokens or model.max_model_len,
        "device": model.device,
        "do_sample": temperature > 0,
        "system_prompt": settings.system_prompt,
    }


class _Merged:
    """Registries as one: the samples of a family that several have are put together."""

    def __init__(self, registries: Iterable[CollectorRegistry]) -> None:
        self._registries = registries

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for registry in self._registries:
            for family in registry.collect():
                known = families.setdefault(family.name, family)
                if known is not family:
                    known.samples += family.samples
        yield from families.values()
