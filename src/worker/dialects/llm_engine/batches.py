"""Batches of LLM Engine's; its files are OpenAI's.

The first line of a docstring is what /openapi.json has of the route.
"""

import asyncio
import logging
from functools import partial
from typing import Any

from worker.batches.finish import settle
from worker.batches.llm_engine import creation
from worker.batches.llm_engine.models import BatchRequest, Priority
from worker.batches.state import Batch
from worker.batches.store import PREFIX
from worker.dialects.openai import own
from worker.dialects.openai.batches import check_endpoint
from worker.errors import Conflict, InvalidInput
from worker.routes.route import Asked
from worker.volume import ids
from worker.volume.pages import fitting, page

log = logging.getLogger(__name__)

# Jobs in a list: to tell how far each is takes a look at its files.
MOST_LISTED = 100


async def create_v1(asked: Asked) -> dict[str, Any]:
    """Create a batch of prompts with common parameters (LLM Engine's v1)."""
    batch, found = await _created(asked, 1)
    return {"job_id": batch.id, **found}


async def create_v2(asked: Asked) -> dict[str, Any]:
    """Create a batch of requests' bodies (LLM Engine's v2)."""
    batch, found = await _created(asked, 2)
    return {**await asyncio.to_thread(creation.shown, batch), **found}


async def retrieve(asked: Asked) -> dict[str, Any]:
    """Describe a batch of LLM Engine's, of either version."""
    batch = await _found(asked)
    await asyncio.to_thread(settle, asked.resources.batches, batch)
    return {"job": await asyncio.to_thread(creation.shown, batch)}


async def listed(asked: Asked) -> dict[str, Any]:
    """List the newest batches of LLM Engine's."""

    def jobs() -> list[dict[str, Any]]:
        ours = filter(creation.is_ours, asked.resources.batches.all())
        newest = page(ours, limit=MOST_LISTED).data
        return fitting(creation.shown(batch) for batch in newest)

    return {"jobs": await asyncio.to_thread(jobs)}


async def update(asked: Asked) -> dict[str, Any]:
    """Note another priority of a batch; the order of its requests stays.

    Raises:
        InvalidInput: the priority is no text, or too long.
    """
    priority = Priority.of_body({"priority": asked.body.get("priority")})
    batch = await _found(asked)
    await asyncio.to_thread(creation.give_priority, batch, priority)
    return {**await asyncio.to_thread(creation.shown, batch), "success": True}


async def cancel(asked: Asked) -> dict[str, Any]:
    """Cancel a batch; one that has ended is none any more, without success."""
    batch = await _found(asked)
    try:
        await asyncio.to_thread(batch.cancel)
    except Conflict:
        return {"success": False}
    await asyncio.to_thread(settle, asked.resources.batches, batch)
    ended = await asyncio.to_thread(batch.ended)
    return {"success": True, **({} if ended else await asked.resources.begin(batch.work))}


async def _created(asked: Asked, version: creation.Version) -> tuple[Batch, dict[str, Any]]:
    """Create a batch and start it; return what to send, too, where that can't be done.

    Raises:
        InvalidInput: naming the field.
    """
    request = BatchRequest.read(asked.body)
    await _check_model(request.config.model, asked)
    if names := request.without_effect:
        told = ", ".join(names)
        log.info("request %s: no effect on an endpoint: %s", asked.request_id, told)
    create = partial(
        creation.create,
        batch_id=ids.derived(PREFIX, asked.request_id),
        by_priority=asked.engines.base.model.by_priority,
        check_endpoint=lambda url: check_endpoint(url, asked.engines),
    )
    batch = await asyncio.to_thread(create, asked.resources.batches, request, version)
    return batch, await asked.resources.begin(batch.work, request.data_parallelism)


async def _check_model(name: str, asked: Asked) -> None:
    cards = (await own.models(asked))["data"]
    if name not in {card["id"] for card in cards}:
        served = ", ".join(card["id"] for card in cards)
        message = f"there is no model {name!r}; this worker serves {served}"
        raise InvalidInput(f"model_config.model: {message}", param="model_config.model")


async def _found(asked: Asked) -> Batch:
    find = partial(creation.find, asked.resources.batches, asked.parameters["job_id"])
    return await asyncio.to_thread(find)
