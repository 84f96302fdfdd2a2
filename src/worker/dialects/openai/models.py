"""OpenAI's routes for models, and vLLM's route that unloads an adapter."""

from typing import Any

from worker.errors import InvalidInput, UnknownRoute
from worker.routes.models import delete_adapter, find_card, list_usable_cards
from worker.routes.route import RouteRequest


async def list_models(request: RouteRequest) -> dict[str, Any]:
    """List the models that callers can name: the model of each engine and its adapters.

    Raises:
        EngineDead: No engine is alive.
    """
    return {"object": "list", "data": await list_usable_cards(request)}


async def retrieve(request: RouteRequest) -> Any:
    """Describe a model or an adapter.

    Raises:
        UnknownRoute: There is no such model or adapter.
        EngineDead: An engine that may serve the model is dead.
    """
    return (await find_card(request, request.path_params["model"]))[1]


async def delete(request: RouteRequest) -> dict[str, Any]:
    """Delete a fine-tuned adapter from the network volume.

    Raises:
        UnknownRoute: There is no such model or adapter.
        InvalidInput: The name is a base model's or one of LORA_MODULES, or deleting is refused.
        VolumeError: The volume can't be written to.
    """
    name = request.path_params["model"]
    await delete_adapter(request, name)
    return {"id": name, "object": "model", "deleted": True}


async def unload_adapter(request: RouteRequest) -> dict[str, Any]:
    """Unload an adapter; a later request that names it loads it again if it still exists.

    Raises:
        UnknownRoute: The operator does not allow callers to unload adapters.
        InvalidInput: ``lora_name`` is not a string.
    """
    if not request.settings.allow_unload_lora_adapter:
        raise UnknownRoute(
            "Callers can't unload adapters of this worker: "
            "its operator has to allow it with ALLOW_UNLOAD_LORA_ADAPTER=1."
        )
    name = request.body.get("lora_name")
    if not isinstance(name, str):
        raise InvalidInput("lora_name: the name of an adapter", param="lora_name")
    await request.engines.base_model.unload_adapter(name)
    return {"unloaded": name}
