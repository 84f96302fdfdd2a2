"""Routes that the worker answers itself: they concern all its engines.

The first line of a docstring is what /openapi.json has of the route.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Metric, generate_latest

from worker.engine import Engine
from worker.errors import EngineAside, EngineDead, InvalidInput, UnknownRoute
from worker.routes.openai.route import CHAT_TEMPERATURE, Asked

NOT_STARTED = {"status": "not started", "message": "You need to start the service first."}


async def models(asked: Asked) -> dict[str, Any]:
    """List the models that callers can name: of each engine, and its adapters.

    Raises:
        EngineDead: no engine is alive.
    """
    found = [card for _, card in await cards(asked)]
    return {"object": "list", "data": [card for card in found if "problem" not in card]}


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
    await asked.engines.main.unload(name)
    return {"unloaded": name}


async def health(asked: Asked) -> dict[str, Any]:
    """Tell whether the model answers, and how each engine is.

    Raises:
        EngineAside, EngineDead: it does not.
    """
    if asked.engines.main.dead:
        raise EngineDead
    if asked.engines.main.is_aside:
        raise EngineAside
    states = {
        engine.model.names[0]: "starting" if engine.dead else "ready" for engine in asked.engines
    }
    return {"status": "ok", "models": states}


async def metrics(asked: Asked) -> str:
    """Return what is counted, of the process and of each engine, in Prometheus' text format."""
    registries = [REGISTRY, *(engine.metrics for engine in asked.engines)]
    return generate_latest(_Merged(registries)).decode()


async def status(asked: Asked) -> dict[str, Any]:
    """Tell what is served, in the words of the Model Serving API."""
    engines, settings = asked.engines, asked.settings
    if engines.main.dead:
        return NOT_STARTED
    model, endpoint = engines.main.model, settings.runpod_endpoint_id
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


async def cards(asked: Asked) -> list[tuple[Engine, dict[str, Any]]]:
    """Return vLLM's cards of the models that callers can name, each with its engine.

    Raises:
        EngineDead: no engine is alive.
    """
    # An embedder that is being started again has none.
    alive = [engine for engine in asked.engines if not engine.dead]
    if not alive:
        raise EngineDead
    return [(engine, card) for engine in alive for card in await _cards(engine, asked.request_id)]


async def find_card(asked: Asked, name: str) -> tuple[Engine, dict[str, Any]]:
    """Return one of ``cards``.

    Raises:
        UnknownRoute: there is no model of this name.
    """
    found = await cards(asked)
    one = next(((engine, card) for engine, card in found if card["id"] == name), None)
    if one is None and any(engine.dead for engine in asked.engines):
        raise EngineDead
    if one is None:
        served = ", ".join(card["id"] for _, card in found)
        raise UnknownRoute(f"There is no model {name!r}; this worker serves {served}.")
    return one


async def _cards(engine: Engine, request_id: str) -> list[dict[str, Any]]:
    """Return vLLM's cards of an engine's models, and such cards of adapters not loaded yet.

    Those of adapters that can't be loaded have the reason under ``problem``.
    """
    async with contextlib.aclosing(engine.call("/v1/models", None, request_id)) as parts:
        body = b"".join([part async for part in parts if isinstance(part, bytes)])
    # Without the path of an adapter, which is not for callers.
    cards = [
        {**card, "root": card["id"]} if card["parent"] else card
        for card in json.loads(body)["data"]
    ]
    first, known = cards[0], {card["id"] for card in cards}
    for name, reason in (await engine.adapters_on_volume()).items():
        if name not in known:
            broken = {"problem": reason} if reason else {}
            cards.append({**first, "id": name, "root": name, "parent": first["id"], **broken})
    return cards
