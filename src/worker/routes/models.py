"""The models that callers can name: of each engine, and its adapters."""

from typing import Any

from worker.engine import Base
from worker.errors import EngineDead, UnknownRoute
from worker.routes.route import Asked


async def usable(asked: Asked) -> list[dict[str, Any]]:
    """Return the cards of the models that can answer.

    Raises:
        EngineDead: no engine is alive.
    """
    return [card for _, card in await cards(asked) if "problem" not in card]


async def cards(asked: Asked) -> list[tuple[Base, dict[str, Any]]]:
    """Return the cards of all models, each with its base model.

    Those of adapters that can't be loaded have the reason under ``problem``.

    Raises:
        EngineDead: no engine is alive.
    """
    # An embedder that is being started again has none.
    alive = [base for base in asked.engines.bases if not base.dead]
    if not alive:
        raise EngineDead
    return [(base, card) for base in alive for card in await _cards(base, asked.request_id)]


async def find_card(asked: Asked, name: str) -> tuple[Base, dict[str, Any]]:
    """Return one of ``cards``.

    Raises:
        UnknownRoute: there is no model of this name.
        EngineDead: the engine that may have it is not alive.
    """
    found = await cards(asked)
    one = next(((base, card) for base, card in found if card["id"] == name), None)
    if one is None and any(base.dead for base in asked.engines.bases):
        raise EngineDead
    if one is None:
        served = ", ".join(card["id"] for _, card in found)
        raise UnknownRoute(f"There is no model {name!r}; this worker serves {served}.")
    return one


async def _cards(base: Base, request_id: str) -> list[dict[str, Any]]:
    """Return the cards of a model, and such cards of adapters not loaded yet."""
    # Without the path of an adapter, which is not for callers.
    cards = [
        {**card, "root": card["id"]} if card["parent"] else card
        for card in await base.cards(request_id)
    ]
    first, known = cards[0], {card["id"] for card in cards}
    for name, reason in (await base.adapters_on_volume()).items():
        if name not in known:
            broken = {"problem": reason} if reason else {}
            cards.append({**first, "id": name, "root": name, "parent": first["id"], **broken})
    return cards
