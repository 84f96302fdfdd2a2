"""Creates and cancels batches and fine-tunes, and passes on their jobs, for all dialects."""

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from worker.batches.record import Batch
from worker.errors import OnOtherVolume, field_error
from worker.job.fine_tune import CreateFineTune
from worker.job.openai import OpenAIJob
from worker.long_work.records import WorkReference
from worker.routes import models
from worker.routes.resources import Resources
from worker.routes.route import RouteRequest
from worker.routes.vllm import BATCH_PATHS

if TYPE_CHECKING:
    from worker.fine_tunes.record import FineTune

log = logging.getLogger(__name__)

# A job for work on another volume is passed on at most this many times, after pauses in seconds of
# which each is four times the last one, up to a maximum. Together, they take two minutes. No worker
# knows the volumes of its endpoint, and a caller may name one that doesn't exist.
MAX_PASSES = 5
MAX_PASS_PAUSE_S = 60.0


async def pass_on(
    work: WorkReference, error: OnOtherVolume, resources: Resources, time_limit: float
) -> dict[str, Any]:
    """Send the job of work that is on another volume again, so that another worker may take it.

    Returns the answer of this job, which ends without an effect on the work. ``error`` is raised if
    the worker can't send jobs, or the job was passed on too often. ``time_limit`` are the seconds
    that this job may take.
    """
    if not resources.can_send_jobs or work.passes >= MAX_PASSES:
        raise error
    pause = min(4.0**work.passes, MAX_PASS_PAUSE_S, time_limit / 2)
    await resources.wait_unless_stopping(pause)
    if await resources.start_long_jobs(replace(work, passes=work.passes + 1)):
        raise error
    log.info("%s is on another volume: its job was sent again", work)
    return {work.kind: {"id": work.id}, "passed_on": error.message}


def check_batch_route(endpoint: str, resources: Resources) -> None:
    """Check that batches can use a route, that it is enabled, and that a served model has it."""
    if endpoint not in BATCH_PATHS:
        raise field_error("endpoint", f"one of {', '.join(BATCH_PATHS)}")
    # vLLM's server has some routes of batches without /v1.
    paths = (endpoint, OpenAIJob(route=endpoint).path)
    if not resources.settings.disabled.isdisjoint(f"POST {path}" for path in paths):
        raise field_error("endpoint", "DISABLED_ROUTES disables this route")
    engines = resources.engines
    if not any(engine.body_keys(path) is not None for engine in engines for path in paths):
        names = ", ".join(base.model.names[0] for base in engines.base_models)
        raise field_error("endpoint", f"{names} can't answer this route")


async def cancel_batch(batch: Batch, resources: Resources) -> dict[str, Any]:
    """Cancel a batch; if a job has to end it, start one. Returns the dict of ``start_long_jobs``.

    Raises:
        Conflict: The batch has already ended.
    """
    await asyncio.to_thread(batch.cancel)
    resources.lines[batch.kind].wake(batch.id)
    has_ended = await asyncio.to_thread(resources.batches.end_if_due, batch)
    return {} if has_ended else await resources.start_long_jobs(batch.work_reference)


async def create_and_start_fine_tune(
    body: CreateFineTune, request: RouteRequest
) -> "tuple[FineTune, dict[str, Any]]":
    """Create a fine-tune and start its job; return also ``Resources.start_long_jobs``'s dict."""
    resources, model = request.resources, request.engines.base_model.model
    resources.check_training_enabled()
    # The import is here because only workers that train need ``creation``.
    from worker.fine_tunes.creation import FineTuneCreator  # noqa: PLC0415 - only for trainings

    adapters = set[str]()
    if body.model not in (*model.names, model.source):
        # Listing adapters needs the engine, which may be suspended for another training. A request
        # that names the base model does not need the engine.
        adapters = {
            card["id"] for card in await models.list_usable_cards(request) if card["parent"]
        }
    creator = FineTuneCreator.from_settings(resources.fine_tunes, model, request.settings)
    id = resources.fine_tunes.id_for_job(request.request_id)
    fine_tune = await creator.create_in_thread(body, id, adapters)
    return fine_tune, await resources.start_long_jobs(fine_tune.work_reference)
