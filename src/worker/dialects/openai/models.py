"""OpenAI's routes of models, and vLLM's that unloads an adapter."""

from typing import Any

from worker.errors import InvalidInput, UnknownRoute
from worker.routes.models import find_card, usable
from worker.routes.route import Asked


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
