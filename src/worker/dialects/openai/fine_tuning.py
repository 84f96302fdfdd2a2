"""OpenAI's routes for fine-tuning jobs, and the objects that describe these."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from worker.dialects.openai.listing import NewestFirstQuery, make_list_object
from worker.job.fine_tune import CreateFineTune
from worker.long_work.records import WorkReference
from worker.routes.long_work import create_and_start_fine_tune
from worker.routes.route import RouteRequest
from worker.volume import ids

if TYPE_CHECKING:
    from worker.fine_tunes.events import FineTuneEvent
    from worker.fine_tunes.record import FineTune

JOBS_PATH = "/v1/fine_tuning/jobs"
ID_PARAMETER = "fine_tuning_job_id"
JOB_PATH = "/v1/fine_tuning/jobs/{fine_tuning_job_id}"


async def create(request: RouteRequest) -> dict[str, Any]:
    """Create a fine-tuning job, and start it if possible; else say which job the caller sends."""
    body = CreateFineTune.from_body(request.body)
    fine_tune, run_with = await create_and_start_fine_tune(body, request)
    return {**await asyncio.to_thread(_describe, fine_tune, request), **run_with}


async def list_jobs(request: RouteRequest) -> dict[str, Any]:
    """List fine-tuning jobs, the newest first."""
    query = request.job.query_params
    page_query = NewestFirstQuery.from_query(query)
    metadata = {
        key.removeprefix("metadata[").removesuffix("]"): value
        for key, value in query.items()
        if key.startswith("metadata[") and key.endswith("]")
    }

    def has_metadata(fine_tune: "FineTune") -> bool:
        return not metadata or metadata.items() <= (fine_tune.request.metadata or {}).items()

    def make_page() -> dict[str, Any]:
        page = request.resources.fine_tunes.list_newest(
            after=page_query.after, limit=page_query.limit, accepts=has_metadata
        )
        return make_list_object(page, lambda fine_tune: _describe(fine_tune, request))

    return await asyncio.to_thread(make_page)


async def retrieve(request: RouteRequest) -> dict[str, Any]:
    """Describe a fine-tuning job, and who runs it."""
    return await asyncio.to_thread(lambda: _describe(_find_job(request), request))


async def cancel(request: RouteRequest) -> dict[str, Any]:
    """Cancel a fine-tuning job permanently."""
    return await _change_job(request, lambda fine_tune: fine_tune.cancel())


async def pause(request: RouteRequest) -> dict[str, Any]:
    """Pause a fine-tuning job after a checkpoint."""
    return await _change_job(request, lambda fine_tune: fine_tune.pause())


async def resume(request: RouteRequest) -> dict[str, Any]:
    """Resume a paused fine-tuning job."""
    request.resources.check_training_enabled()
    job = await _change_job(request, lambda fine_tune: fine_tune.resume())
    return {**job, **await request.resources.start_long_jobs(WorkReference("fine_tune", job["id"]))}


async def list_events(request: RouteRequest) -> dict[str, Any]:
    """List the events of a fine-tuning job, the newest first."""
    query = NewestFirstQuery.from_query(request.job.query_params)
    return await asyncio.to_thread(
        lambda: query.make_page(_find_job(request).events(), event_object)
    )


async def list_checkpoints(request: RouteRequest) -> dict[str, Any]:
    """List the adapters of a fine-tuning job's epochs, the newest first."""
    query = NewestFirstQuery.from_query(request.job.query_params)
    return await asyncio.to_thread(
        lambda: query.make_page(usable_checkpoints(_find_job(request)), checkpoint_object)
    )


def _describe(fine_tune: "FineTune", request: RouteRequest) -> dict[str, Any]:
    return {**job_object(fine_tune), **request.resources.describe_run(fine_tune)}


def _find_job(request: RouteRequest) -> "FineTune":
    return request.resources.fine_tunes.get_ended_if_due(request.path_params[ID_PARAMETER])


async def _change_job(
    request: RouteRequest, change: "Callable[[FineTune], None]"
) -> dict[str, Any]:
    id, fine_tunes = request.path_params[ID_PARAMETER], request.resources.fine_tunes

    def change_and_describe() -> dict[str, Any]:
        fine_tune = fine_tunes.get(id)
        change(fine_tune)
        fine_tunes.end_if_due(fine_tune)
        return _describe(fine_tune, request)

    job = await asyncio.to_thread(change_and_describe)
    request.resources.lines["fine_tune"].wake(id)
    return job


# OpenAI's objects name an organization; the worker's objects always name ``org-worker``.
ORGANIZATION_ID = "org-worker"


CHECKPOINT_PREFIX = "ftckpt-"


# Number of recent training events from which the end of a training is estimated.
ESTIMATE_EVENTS = 20


_CHECKPOINT_METRICS = (
    *("train_loss", "train_mean_token_accuracy", "valid_loss", "valid_mean_token_accuracy"),
    *("full_valid_loss", "full_valid_mean_token_accuracy"),
)


@dataclass(frozen=True, slots=True)
class ListedCheckpoint:
    """The adapter of an epoch, as an item of a list."""

    fine_tune_id: str
    created_at: int  # Unix timestamp in seconds
    step: int  # training steps before the checkpoint
    name: str
    metrics: dict[str, float]  # by OpenAI's names

    @property
    def id(self) -> str:
        """An id that contains the step, so that checkpoints of the same second are sorted, too."""
        return ids.number_id(CHECKPOINT_PREFIX, self.fine_tune_id, self.step)


def event_object(entry: "FineTuneEvent") -> dict[str, Any]:
    metrics = entry.metrics
    names = {"train_loss": "training loss", "valid_loss": "validation loss"}
    losses = [f"{label}={metrics[name]:.4g}" for name, label in names.items() if name in metrics]
    return {
        "id": entry.id,
        "object": "fine_tuning.job.event",
        "created_at": entry.created_at,
        "level": entry.level,
        "message": f"Step {entry.step}: {', '.join(losses)}" if losses else entry.message,
        "type": "metrics" if metrics else "message",
        "data": {"step": entry.step, **metrics} if metrics else {},
    }


def checkpoint_object(epoch: ListedCheckpoint) -> dict[str, Any]:
    return {
        "id": epoch.id,
        "object": "fine_tuning.job.checkpoint",
        "created_at": epoch.created_at,
        "fine_tuned_model_checkpoint": epoch.name,
        "fine_tuning_job_id": epoch.fine_tune_id,
        "metrics": {"step": epoch.step, **epoch.metrics},
        "step_number": epoch.step,
    }


def job_object(fine_tune: "FineTune") -> dict[str, Any]:
    """Return a fine-tuning job object. Reads files, so call it in a thread."""
    # The result is read after the status and overrides it: a worker may write it in between.
    request, status, result = fine_tune.request, fine_tune.status, fine_tune.result
    spec = request.spec
    # By OpenAI's names; those that OpenAI lacks by LLM Engine's names.
    hyperparameters = {
        "n_epochs": spec.epochs,
        "batch_size": spec.batch_size or "auto",
        "learning_rate_multiplier": request.learning_rate_multiplier,
        "lr": spec.learning_rate,
        "warmup_ratio": spec.warmup_ratio,
        "weight_decay": spec.weight_decay,
        "peft_config": spec.lora.model_dump(mode="json"),
    }
    return {
        "id": fine_tune.id,
        "object": "fine_tuning.job",
        "created_at": request.created_at,
        "error": result.error.model_dump() if result and result.error else None,
        "fine_tuned_model": result.adapter if result else None,
        "finished_at": result.at if result else None,
        "hyperparameters": hyperparameters,
        "model": request.base,
        "organization_id": ORGANIZATION_ID,
        "result_files": list(result.result_file_ids) if result else [],
        "seed": request.seed,
        "status": result.status if result else status,
        "trained_tokens": result.trained_tokens if result else None,
        "training_file": request.training_file,
        "validation_file": request.validation_file,
        "estimated_finish": _estimate_finish(fine_tune) if status == "running" else None,
        "integrations": [{"type": "wandb", "wandb": request.wandb}] if request.wandb else [],
        "metadata": request.metadata,
        "method": {
            "type": request.method,
            request.method: {"hyperparameters": hyperparameters},
        },
        "user_provided_suffix": request.suffix,
    }


def usable_checkpoints(fine_tune: "FineTune") -> list[ListedCheckpoint]:
    """Return a finished fine-tune's usable checkpoints. Reads files, so call it in a thread."""
    result = fine_tune.result
    if result is None:
        return []
    metrics = fine_tune.metrics_by_step()
    times_by_step = {entry.step: entry.created_at for entry in fine_tune.events()}
    return [
        ListedCheckpoint(
            fine_tune_id=fine_tune.id,
            created_at=times_by_step.get(epoch.step, result.at),
            step=epoch.step,
            name=epoch.name,
            metrics={
                key: value
                for key, value in metrics.get(epoch.step, {}).items()
                if key in _CHECKPOINT_METRICS
            },
        )
        for epoch in result.checkpoints
        if epoch.name
    ]


def _estimate_finish(fine_tune: "FineTune") -> int | None:
    """Return the estimated Unix timestamp of a training's end, or None without progress so far."""
    events = [entry for entry in fine_tune.events() if "epoch" in entry.metrics][-ESTIMATE_EVENTS:]
    if not events:
        return None
    first, last = events[0], events[-1]
    done = last.metrics["epoch"] - first.metrics["epoch"]
    left = fine_tune.request.spec.epochs - last.metrics["epoch"]
    # The estimate starts from the current time, since after a pause the last event is old.
    return round(time.time() + left * (last.at - first.at) / done) if done > 0 else None
