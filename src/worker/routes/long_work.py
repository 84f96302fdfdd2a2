"""Batches and fine-tunes as requests of every dialect create, find and cancel them."""

import asyncio
from typing import Any

from worker.batches.finish import settle
from worker.batches.state import Batch
from worker.engine import Engines
from worker.errors import InvalidInput
from worker.fine_tunes.creation import Creator
from worker.fine_tunes.state import FineTune
from worker.fine_tunes.store import PREFIX
from worker.job.fine_tune import CreateFineTune
from worker.job.openai import OpenAIJob
from worker.routes import models
from worker.routes.resources import Resources
from worker.routes.route import Asked
from worker.volume import ids


def check_endpoint(endpoint: str, engines: Engines) -> None:
    """Refuse a batch of which every line would be refused.

    Raises:
        InvalidInput: no model that is served has the endpoint.
    """
    # vLLM's server has some of them without /v1.
    paths = (endpoint, OpenAIJob(route=endpoint).path)
    if not any(engine.keys(path) is not None for engine in engines for path in paths):
        names = ", ".join(base.model.names[0] for base in engines.bases)
        message = f"endpoint: this is nothing that {names} can do"
        raise InvalidInput(message, param="endpoint")


def settle_batch(id: str, resources: Resources) -> Batch:
    """Find a batch; end it if it should have ended, and no worker is at it. For threads.

    Raises:
        NoSuchObject: there is none.
    """
    batch = resources.batches.get(id)
    settle(resources.batches, batch)
    return batch


def settle_fine_tune(id: str, resources: Resources) -> FineTune:
    """Find a fine-tune; see ``settle_batch``."""
    fine_tune = resources.fine_tunes.get(id)
    fine_tune.settle()
    return fine_tune


async def cancel_batch(batch: Batch, resources: Resources) -> dict[str, Any]:
    """Cancel a batch; return what callers have to send so that it ends, if they have to.

    Raises:
        Conflict: it has ended.
    """
    await asyncio.to_thread(batch.cancel)
    await asyncio.to_thread(settle, resources.batches, batch)
    ended = await asyncio.to_thread(batch.ended)
    return {} if ended else await resources.begin(batch.work)


async def create_fine_tune(
    request: CreateFineTune, asked: Asked
) -> tuple[FineTune, dict[str, Any]]:
    """Create a fine-tune and start it; return what callers have to send, too, if they have to.

    Raises:
        InvalidInput: naming the field.
    """
    resources, model = asked.resources, asked.engines.base.model
    resources.check_training()
    adapters = set[str]()
    if request.model not in (*model.names, model.source):
        # Only who names no base model needs an engine, which may make room for a training.
        adapters = {card["id"] for card in await models.usable(asked) if card["parent"]}
    creator = Creator.of(resources.fine_tunes, model, asked.settings)
    fine_tune = await creator.acreate(request, ids.derived(PREFIX, asked.request_id), adapters)
    return fine_tune, await resources.begin(fine_tune.work)
