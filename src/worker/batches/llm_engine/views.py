"""A batch as a job of LLM Engine's."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

# OpenAI's status of a batch -> LLM Engine's. A batch that expired has not become what was asked.
STATUSES = {
    "validating": "queued",
    "in_progress": "running",
    "finalizing": "running",
    "cancelling": "running",
    "completed": "completed",
    "failed": "failed",
    "expired": "failed",
    "cancelled": "cancelled",
}
# When a batch ended, whichever way.
ENDS = ("completed_at", "failed_at", "expired_at", "cancelled_at")
FILES = ("output_file_id", "error_file_id")


def job(batch: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch as a job.

    Args:
        batch: OpenAI's object of it.
        asked: what the request said: its paths, model_config, priority and metadata.
    """
    ended = next((batch[name] for name in ENDS if batch.get(name) is not None), None)
    # Who has no access to the volume reads the results in OpenAI's form.
    notes = {name: batch[name] for name in FILES if batch.get(name) is not None}
    if errors := batch.get("errors"):
        notes["error"] = errors["data"][0]["message"]
    return {
        "job_id": batch["id"],
        "input_data_path": asked.get("input_data_path"),
        "output_data_path": asked["output_data_path"],
        "model_config": asked["model_config"],
        "priority": asked.get("priority"),
        "status": STATUSES.get(batch["status"], "unknown"),
        "created_at": _iso(batch["created_at"]),
        "expires_at": _iso(batch["expires_at"]),
        "completed_at": None if ended is None else _iso(ended),
        "metadata": {**asked["metadata"], **notes},
    }


def _iso(seconds: float) -> str:
    """Return a time in ISO's form, from seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()
