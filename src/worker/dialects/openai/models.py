"""OpenAI's routes for models, and vLLM's route that unloads an adapter."""

from typing import Any

from worker.errors import UnknownRoute, field_error
from worker.routes.models import delete_adapter, find_card, list_usable_cards
from worker.routes.route import RouteRequest


async def list_models(request: RouteRequest) -> dict[str, Any]:
    """List the models that callers can name: the model of each engine and its adapters."""
    return {"object": "list", "data": await list_usable_cards(request)}


async def retrieve(request: RouteRequest) -> Any:
    """Describe a model or an adapter."""
    return (await find_card(request, request.path_params["model"]))[1]


async def delete(request: RouteRequest) -> dict[str, Any]:
    """Delete a fine-tuned adapter from the network volume."""
    name = request.path_params["model"]
    await delete_adapter(request, name)
    return {"id": name, "object": "model", "deleted": True}


async def unload_adapter(request: RouteRequest) -> dict[str, Any]:
    """Unload an adapter; a later request that names it loads it again if it still exists."""
    if not request.settings.allow_unload_lora_adapter:
        raise UnknownRoute(
            "Callers can't unload adapters of this worker: "
            "its operator has to allow it with ALLOW_UNLOAD_LORA_ADAPTER=1."
        )
    name = request.body.get("lora_name")
    if not isinstance(name, str):
        raise field_error("lora_name", "the name of an adapter")
    await request.engines.base_model.unload_adapter(name)
    return {"unloaded": name}
