"""OpenAI's objects for files, batches and fine-tuning jobs on the volume."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from worker.batches.record import Batch
from worker.files import StoredFile
from worker.volume import ids

if TYPE_CHECKING:
    from worker.fine_tunes.events import FineTuneEvent
    from worker.fine_tunes.record import FineTune
    from worker.fine_tunes.request import StoredFineTune

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
    """The adapter of an epoch, as an item of a list.

    Args:
        fine_tune_id: The id of the fine-tune.
        created_at: Unix timestamp in seconds.
        step: Number of training steps before the checkpoint.
        name: Name by which requests select the adapter.
        metrics: Metrics by OpenAI's names.
    """

    fine_tune_id: str
    created_at: int
    step: int
    name: str
    metrics: dict[str, float]

    @property
    def id(self) -> str:
        """An id that contains the step, so that checkpoints of the same second are sorted, too."""
        return ids.number_id(CHECKPOINT_PREFIX, self.fine_tune_id, self.step)


def file(stored_file: StoredFile) -> dict[str, Any]:
    """Return a file object, which also has the size under LLM Engine's name."""
    return {
        "id": stored_file.id,
        "object": "file",
        "bytes": stored_file.bytes,
        "size": stored_file.bytes,
        "created_at": stored_file.created_at,
        "expires_at": stored_file.expires_at,
        "filename": stored_file.filename,
        "purpose": stored_file.purpose,
        "status": "processed",
    }


def batch(record: Batch) -> dict[str, Any]:
    """Return a batch object. Reads files, so call it in a thread.

    Raises:
        NoSuchObject: The batch does not exist, or has just been removed.
    """
    snapshot = record.snapshot()
    request, counts = snapshot.request, snapshot.counts
    ended_at = {snapshot.status: snapshot.ended_at}
    return {
        "id": record.id,
        "object": "batch",
        "endpoint": request.endpoint,
        "errors": {"object": "list", "data": snapshot.mistakes} if snapshot.mistakes else None,
        "input_file_id": request.input_file_id,
        "completion_window": request.completion_window,
        "status": snapshot.status,
        "output_file_id": counts.output_file_id,
        "error_file_id": counts.error_file_id,
        "created_at": request.created_at,
        "in_progress_at": snapshot.planned_at,
        "expires_at": request.expires_at,
        "finalizing_at": snapshot.ending_at,
        "completed_at": ended_at.get("completed"),
        "failed_at": ended_at.get("failed"),
        "expired_at": ended_at.get("expired"),
        "cancelling_at": snapshot.cancelled_at,
        "cancelled_at": ended_at.get("cancelled"),
        "request_counts": {
            "total": counts.total,
            "completed": counts.completed,
            "failed": counts.failed,
        },
        "usage": {
            "input_tokens": counts.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": counts.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counts.prompt_tokens + counts.output_tokens,
        },
        "metadata": request.metadata,
    }


def event(entry: "FineTuneEvent") -> dict[str, Any]:
    """Return an event object of a fine-tuning job."""
    metrics = entry.metrics
    return {
        "id": entry.id,
        "object": "fine_tuning.job.event",
        "created_at": entry.created_at,
        "level": entry.level,
        "message": _describe_losses(entry.step, metrics) or entry.message,
        "type": "metrics" if entry.metrics else "message",
        "data": {"step": entry.step, **metrics} if entry.metrics else {},
    }


def checkpoint(epoch: ListedCheckpoint) -> dict[str, Any]:
    """Return a checkpoint object of a fine-tuning job."""
    return {
        "id": epoch.id,
        "object": "fine_tuning.job.checkpoint",
        "created_at": epoch.created_at,
        "fine_tuned_model_checkpoint": epoch.name,
        "fine_tuning_job_id": epoch.fine_tune_id,
        "metrics": {"step": epoch.step, **epoch.metrics},
        "step_number": epoch.step,
    }


def fine_tuning_job(fine_tune: "FineTune") -> dict[str, Any]:
    """Return a fine-tuning job object. Reads files, so call it in a thread.

    Raises:
        NoSuchObject: The fine-tune does not exist.
        VolumeError: The volume fails.
    """
    # The result is read after the status and overrides it: a worker may write it in between.
    request, status, result = fine_tune.request, fine_tune.status, fine_tune.result
    hyperparameters = _hyperparameters(request)
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
    """Return a finished fine-tune's usable checkpoints. Reads files, so call it in a thread.

    Raises:
        NoSuchObject: The fine-tune does not exist.
        VolumeError: The volume fails.
    """
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


def _hyperparameters(request: "StoredFineTune") -> dict[str, Any]:
    """Return hyperparameters by OpenAI's names; those that OpenAI lacks by LLM Engine's names."""
    spec = request.spec
    return {
        "n_epochs": spec.epochs,
        "batch_size": spec.batch_size or "auto",
        "learning_rate_multiplier": request.learning_rate_multiplier,
        "lr": spec.learning_rate,
        "warmup_ratio": spec.warmup_ratio,
        "weight_decay": spec.weight_decay,
        "peft_config": spec.lora.model_dump(mode="json"),
    }


def _describe_losses(step: int, metrics: dict[str, float]) -> str | None:
    """Return a message with the losses of a step, or None if the step has no losses."""
    names = {"train_loss": "training loss", "valid_loss": "validation loss"}
    losses = [f"{label}={metrics[name]:.4g}" for name, label in names.items() if name in metrics]
    return f"Step {step}: {', '.join(losses)}" if losses else None
