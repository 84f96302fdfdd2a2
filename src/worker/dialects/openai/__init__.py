"""The routes of OpenAI's API, and of the APIs that vLLM's server has beside it."""

from worker.dialects.openai import batches, files, fine_tuning, models
from worker.routes import vllm
from worker.routes.route import Route

ROUTES = (
    *vllm.ROUTES,
    Route("GET", "/v1/models", models.models),
    Route("GET", "/v1/models/{model:path}", models.model),
    Route("POST", files.FILES, files.create),
    Route("GET", files.FILES, files.list_files),
    Route("GET", "/v1/files/{id}", files.retrieve),
    Route("DELETE", "/v1/files/{id}", files.delete),
    # For callers whose gateway takes no other verbs.
    Route("POST", "/v1/files/{id}/delete", files.delete),
    Route("GET", files.CONTENT, files.read_content, streams=True),
    Route("POST", "/v1/unload_lora_adapter", models.unload_adapter),
    Route("POST", "/v1/batches", batches.create),
    Route("GET", "/v1/batches", batches.list_batches),
    Route("GET", "/v1/batches/{batch_id}", batches.retrieve),
    Route("POST", "/v1/batches/{batch_id}/cancel", batches.cancel),
    Route("POST", fine_tuning.JOBS, fine_tuning.create),
    Route("GET", fine_tuning.JOBS, fine_tuning.list_jobs),
    Route("GET", fine_tuning.JOB, fine_tuning.retrieve),
    Route("POST", f"{fine_tuning.JOB}/cancel", fine_tuning.cancel),
    Route("POST", f"{fine_tuning.JOB}/pause", fine_tuning.pause),
    Route("POST", f"{fine_tuning.JOB}/resume", fine_tuning.resume),
    Route("GET", f"{fine_tuning.JOB}/events", fine_tuning.list_events),
    Route("GET", f"{fine_tuning.JOB}/checkpoints", fine_tuning.list_checkpoints),
)
