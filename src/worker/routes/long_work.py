"""Batches and fine-tunes as requests of every dialect create and cancel them."""

import asyncio
from typing import TYPE_CHECKING, Any

from worker.batches.record import Batch
from worker.engine import Engines
from worker.errors import InvalidInput
from worker.job.fine_tune import CreateFineTune
from worker.job.openai import OpenAIJob
from worker.routes import models
from worker.routes.resources import Resources
from worker.routes.route import Asked
from worker.routes.vllm import BATCH_PATHS

if TYPE_CHECKING:
    from worker.fine_tunes.record import FineTune


def check_endpoint(endpoint: str, engines: Engines) -> None:
    """Refuse a batch of which every line would be refused.

    Raises:
        InvalidInput: lines can't go there, or no model that is served has the endpoint.
    """
    if endpoint not in BATCH_PATHS:
        raise InvalidInput(f"endpoint: one of {', '.join(BATCH_PATHS)}", param="endpoint")
    # vLLM's server has some of them without /v1.
    paths = (endpoint, OpenAIJob(route=endpoint).path)
    if not any(engine.keys(path) is not None for engine in engines for path in paths):
        names = ", ".join(base.model.names[0] for base in engines.bases)
        message = f"endpoint: this is nothing that {names} can do"
        raise InvalidInput(message, param="endpoint")


async def cancel_batch(batch: Batch, resources: Resources) -> dict[str, Any]:
    """Cancel a batch; return what callers have to send so that it ends, if they have to.

    Raises:
        Conflict: it has ended.
    """
    await asyncio.to_thread(batch.cancel)
    ended = await asyncio.to_thread(resources.batches.settle, batch)
    return {} if ended else await resources.begin(batch.work)


async def create_fine_tune(
    request: CreateFineTune, asked: Asked
) -> "tuple[FineTune, dict[str, Any]]":
    """Create a fine-tune and start it; return what callers have to send, too, if they have to.

    Raises:
        InvalidInput: naming the field.
    """
    resources, model = asked.resources, asked.engines.base.model
    resources.check_training()
    # A worker that trains none does without it.
    from worker.fine_tunes.creation import Creator  # noqa: PLC0415 - see above

    adapters = set[str]()
    if request.model not in (*model.names, model.source):
        # Only who names no base model needs an engine, which may make room for a training.
        adapters = {card["id"] for card in await models.usable(asked) if card["parent"]}
    creator = Creator.of(resources.fine_tunes, model, asked.settings)
    id = resources.fine_tunes.id_of(asked.request_id)
    fine_tune = await creator.acreate(request, id, adapters)
    return fine_tune, await resources.begin(fine_tune.work)
