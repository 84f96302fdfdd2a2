"""The models that callers can name: the model of each engine, its adapters, and their abilities."""

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from worker.engine import BaseModelHandle, Engine, Engines, Model
from worker.errors import EngineDead, InvalidInput, RefusedByEngine, UnknownRoute
from worker.routes.route import RouteRequest
from worker.validation import unknown_model_advice
from worker.volume import adapters
from worker.volume.ids import UNKNOWN_LOCATION, VolumeLocation


async def list_usable_cards(request: RouteRequest) -> list[dict[str, Any]]:
    return [card for _, card in await list_cards(request) if "problem" not in card]


async def list_cards(request: RouteRequest) -> list[tuple[BaseModelHandle, dict[str, Any]]]:
    """Return the cards of all models, each with the engine of its base model.

    A card is OpenAI's object that describes a model. Adapters have cards whether they are loaded or
    not. The card of one that can't be loaded has the reason under ``problem``.
    """
    # A dead engine, for example an embedder that is being restarted, can't list its cards.
    bases = [base for base in request.engines.base_models if not base.is_dead]
    if not bases:
        raise EngineDead
    all_cards: list[tuple[BaseModelHandle, dict[str, Any]]] = []
    for base in bases:
        # The path of an adapter is removed, since callers must not see it.
        cards = [
            {**card, "root": card["id"]} if card["parent"] else card
            for card in await base.model_cards(request.request_id)
        ]
        base_card, loaded = cards[0], {card["id"] for card in cards}
        for name, reason in (await base.adapter_problems_on_volume()).items():
            if name not in loaded:
                card = {**base_card, "id": name, "root": name, "parent": base_card["id"]}
                cards.append(card | ({"problem": reason} if reason else {}))
        all_cards += [(base, card) for card in cards]
    return all_cards


async def find_card(request: RouteRequest, name: str) -> tuple[BaseModelHandle, dict[str, Any]]:
    """Return the card of a model, with the engine of its base model.

    Raises ``OnOtherVolume`` for an adapter on another volume, and ``EngineDead`` if a dead engine
    may serve the model.
    """
    all_cards = await list_cards(request)
    match = next(((base, card) for base, card in all_cards if card["id"] == name), None)
    if match is None and any(base.is_dead for base in request.engines.base_models):
        raise EngineDead
    if match is None:
        location = adapters_location(request)
        location.check_name("adapter", name)
        usable = (card["id"] for _, card in all_cards if "problem" not in card)
        message = f"There is no model {name!r}; {unknown_model_advice(name, usable)}"
        message += location.adapters_note
        if _serves_adapters(request):
            root = adapters.adapters_directory(request.settings.base_path)
            message += await asyncio.to_thread(adapters.explain_missing_adapter, root, name)
        raise UnknownRoute(message)
    return match


async def delete_adapter(request: RouteRequest, name: str) -> None:
    """Delete an adapter from the network volume."""
    base, card = await find_card(request, name)
    await check_on_volume(base, card, "be deleted")
    root = adapters.adapters_directory(request.settings.base_path)
    origin_id = await asyncio.to_thread(adapters.origin_fine_tune_id, root, name)
    if origin_id is None and not request.settings.allow_unload_lora_adapter:
        raise InvalidInput(
            "Callers can delete only adapters that fine-tunes have made here: for others, the "
            "worker's operator has to allow it with ALLOW_UNLOAD_LORA_ADAPTER=1."
        )
    await asyncio.to_thread(adapters.remove_adapter, root, name)
    try:
        await base.unload_adapter(name)
    except RefusedByEngine as error:
        if error.status != HTTPStatus.NOT_FOUND:  # NOT_FOUND: the adapter was not loaded.
            raise


async def check_on_volume(base: BaseModelHandle, card: dict[str, Any], action: str) -> None:
    """Check that a card describes an adapter on the volume; ``action`` is for the message."""
    name = card["id"]
    if card["parent"] is None:
        raise InvalidInput(f"{name!r} is a base model: only adapters can {action}.")
    if name not in await base.adapter_problems_on_volume():
        raise InvalidInput(f"{name!r} belongs to the endpoint (LORA_MODULES): it can't {action}.")


def adapters_location(request: RouteRequest) -> VolumeLocation:
    """Return the volume of the adapters; an unknown one if no model of the worker serves any."""
    if not _serves_adapters(request):
        return UNKNOWN_LOCATION
    return VolumeLocation.from_settings(request.settings)


def _serves_adapters(request: RouteRequest) -> bool:
    return any(base.model.max_lora_rank is not None for base in request.engines.base_models)


# Verbs for a model, by vLLM's name of a task that it supports. The first match is used. Models
# without any of these tasks score texts.
ABILITIES = {"generate": "generates text", "embed": "embeds", "classify": "classifies"}


def describe_ability(model: Model) -> str:
    """Return a model's name and ability: "'minilm' embeds"."""
    verb = next((verb for task, verb in ABILITIES.items() if task in model.tasks), "scores")
    return f"{model.names[0]!r} {verb}"


def check_model_ability(
    name: object, able_engines: Sequence[Engine], engines: Engines, target: str
) -> None:
    """Refuse a request to a model that this worker serves for another task.

    ``name`` is the model's name as the caller wrote it. The message names ``target``, which is the
    route or the kind of input, and the models that can answer it.
    """
    able_names = {able_name for engine in able_engines for able_name in engine.model.names}
    for engine in engines:
        if name in engine.model.names and name not in able_names:
            names = ", ".join(engine.model.names[0] for engine in able_engines)
            message = f"{describe_ability(engine.model)} and can't answer {target}; {names} can"
            raise UnknownRoute(f"{message}.", param="model")
