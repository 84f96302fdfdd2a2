"""OpenAI's objects, of what the volume has: files, batches, fine-tuning jobs."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from worker.batches.record import Batch
from worker.files import StoredFile

if TYPE_CHECKING:
    from worker.fine_tunes.events import Told
    from worker.fine_tunes.record import FineTune
    from worker.fine_tunes.request import StoredFineTune

# OpenAI's objects have one.
ORGANIZATION = "org-worker"
CHECKPOINT = "ftckpt-"
# Metrics from which it is estimated when a training ends.
LATELY = 20
_METRICS = (
    *("train_loss", "train_mean_token_accuracy", "valid_loss", "valid_mean_token_accuracy"),
    *("full_valid_loss", "full_valid_mean_token_accuracy"),
)


@dataclass(frozen=True, slots=True)
class DatedCheckpoint:
    """The adapter of an epoch, in a list.

    Args:
        fine_tune_id: whose.
        created_at: in seconds since 1970.
        step: the steps done by then.
        name: that it is called by.
        metrics: by OpenAI's names.
    """

    fine_tune_id: str
    created_at: int
    step: int
    name: str
    metrics: dict[str, float]

    @property
    def id(self) -> str:
        """Also sorts those of a second."""
        return f"{CHECKPOINT}{self.fine_tune_id.rpartition('-')[2]}-{self.step:08}"


def file(stored: StoredFile) -> dict[str, Any]:
    """Return a file, with its size under LLM Engine's name, too."""
    return {
        "id": stored.id,
        "object": "file",
        "bytes": stored.bytes,
        "size": stored.bytes,
        "created_at": stored.created_at,
        "expires_at": stored.expires_at,
        "filename": stored.filename,
        "purpose": stored.purpose,
        "status": "processed",
    }


def batch(found: Batch) -> dict[str, Any]:
    """Return a batch. Reads files: for threads.

    Raises:
        NoSuchObject: there is none, or it has just been removed.
    """
    now = found.snapshot()
    request, counts, ended = now.request, now.counts, {now.status: now.ended_at}
    return {
        "id": found.id,
        "object": "batch",
        "endpoint": request.endpoint,
        "errors": {"object": "list", "data": now.mistakes} if now.mistakes else None,
        "input_file_id": request.input_file_id,
        "completion_window": request.completion_window,
        "status": now.status,
        "output_file_id": counts.output_file_id,
        "error_file_id": counts.error_file_id,
        "created_at": request.created_at,
        "in_progress_at": now.planned_at,
        "expires_at": request.expires_at,
        "finalizing_at": now.ending_at,
        "completed_at": ended.get("completed"),
        "failed_at": ended.get("failed"),
        "expired_at": ended.get("expired"),
        "cancelling_at": now.cancelled_at,
        "cancelled_at": ended.get("cancelled"),
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


def event(told: "Told") -> dict[str, Any]:
    """Return an event of a fine-tuning job."""
    found = told.metrics
    return {
        "id": told.id,
        "object": "fine_tuning.job.event",
        "created_at": told.created_at,
        "level": told.level,
        "message": _losses(told.step, found) or told.message,
        "type": "metrics" if told.metrics else "message",
        "data": {"step": told.step, **found} if told.metrics else {},
    }


def checkpoint(found: DatedCheckpoint) -> dict[str, Any]:
    """Return a checkpoint of a fine-tuning job."""
    return {
        "id": found.id,
        "object": "fine_tuning.job.checkpoint",
        "created_at": found.created_at,
        "fine_tuned_model_checkpoint": found.name,
        "fine_tuning_job_id": found.fine_tune_id,
        "metrics": {"step": found.step, **found.metrics},
        "step_number": found.step,
    }


def fine_tuning_job(fine_tune: "FineTune") -> dict[str, Any]:
    """Return a fine-tune. Reads files: for threads.

    Raises:
        NoSuchObject: there is none.
        VolumeError: the volume fails.
    """
    # The result last: it decides about the status.
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
        "organization_id": ORGANIZATION,
        "result_files": list(result.result_file_ids) if result else [],
        "seed": request.seed,
        "status": result.status if result else status,
        "trained_tokens": result.trained_tokens if result else None,
        "training_file": request.training_file,
        "validation_file": request.validation_file,
        "estimated_finish": _finish(fine_tune) if status == "running" else None,
        "integrations": [{"type": "wandb", "wandb": request.wandb}] if request.wandb else [],
        "metadata": request.metadata,
        "method": {
            "type": request.method,
            request.method: {"hyperparameters": hyperparameters},
        },
        "user_provided_suffix": request.suffix,
    }


def checkpoints(fine_tune: "FineTune") -> list[DatedCheckpoint]:
    """Return the adapters of the epochs that can be called. Reads files: for threads.

    Raises:
        NoSuchObject: there is no such fine-tune.
        VolumeError: the volume fails.
    """
    result = fine_tune.result
    if result is None:
        return []
    metrics = fine_tune.metrics()
    times = {one.step: one.created_at for one in fine_tune.events()}
    return [
        DatedCheckpoint(
            fine_tune_id=fine_tune.id,
            created_at=times.get(one.step, result.at),
            step=one.step,
            name=one.name,
            metrics={
                name: value for name, value in metrics.get(one.step, {}).items() if name in _METRICS
            },
        )
        for one in result.checkpoints
        if one.name
    ]


def _finish(fine_tune: "FineTune") -> int | None:
    """Return when the last epoch ends if it goes on as lately; None: that can't be told yet."""
    told = [one for one in fine_tune.events() if "epoch" in one.metrics][-LATELY:]
    if not told:
        return None
    first, last = told[0], told[-1]
    done = last.metrics["epoch"] - first.metrics["epoch"]
    left = fine_tune.request.spec.epochs - last.metrics["epoch"]
    # From now on: after a pause the last of them is old.
    return round(time.time() + left * (last.at - first.at) / done) if done > 0 else None


def _hyperparameters(request: "StoredFineTune") -> dict[str, Any]:
    """Return what OpenAI's names say of a training, and the rest by LLM Engine's names."""
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


def _losses(step: int, metrics: dict[str, float]) -> str | None:
    """Return a sentence of a step's losses; None: there are none."""
    names = {"train_loss": "training loss", "valid_loss": "validation loss"}
    losses = [f"{text}={metrics[name]:.4g}" for name, text in names.items() if name in metrics]
    return f"Step {step}: {', '.join(losses)}" if losses else None
