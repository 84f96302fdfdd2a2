"""Routes that the worker answers itself: they concern all its engines.

The first line of a docstring is what /openapi.json has of the route.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Metric, generate_latest

from worker.errors import EngineAside, EngineDead, InvalidInput, UnknownRoute
from worker.routes.models import find_card, usable
from worker.routes.route import CHAT_TEMPERATURE, Asked

NOT_STARTED = {"status": "not started", "message": "You need to start the service first."}


async def models(asked: Asked) -> dict[str, Any]:
    """List the models that callers can name: of each engine, and its adapters.

    Raises:
        EngineDead: no engine is alive.
    """
    return {"object": "list", "data": await usable(asked)}


async def model(asked: Asked) -> Any:
    """Describe one of ``models``.

    Raises:
        UnknownRoute: there is no such model.
    """
    return (await find_card(asked, asked.parameters["model"]))[1]


async def unload_adapter(asked: Asked) -> dict[str, Any]:
    """Forget an adapter until it is named again; one whose directory is gone stays forgotten.

    Raises:
        UnknownRoute: callers may not.
    """
    if not asked.settings.allow_unload_lora_adapter:
        raise UnknownRoute(
            "Callers can't unload adapters of this worker: "
            "its operator has to allow it with ALLOW_UNLOAD_LORA_ADAPTER=1."
        )
    name = asked.body.get("lora_name")
    if not isinstance(name, str):
        raise InvalidInput("lora_name: the name of an adapter", param="lora_name")
    await asked.engines.base.unload(name)
    return {"unloaded": name}


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
