"""OpenAI's dialect: the routes of its API, and of the other APIs that vLLM's server has.

``forward`` sends requests for vLLM's routes to its server in this process. The worker answers the
others itself: each of ``models``, ``files``, ``batches`` and ``fine_tuning`` has the functions for
its routes and OpenAI's objects for them. ``listing`` cuts lists into pages.
"""

from worker.dialects.openai import batches, files, fine_tuning, models
from worker.routes import vllm
from worker.routes.route import Route

ROUTES = (
    *vllm.ROUTES,
    Route("GET", "/v1/models", models.list_models),
    Route("GET", "/v1/models/{model:path}", models.retrieve),
    Route("DELETE", "/v1/models/{model:path}", models.delete),
    Route("POST", files.FILES_PATH, files.create),
    Route("GET", files.FILES_PATH, files.list_files),
    Route("GET", "/v1/files/{id}", files.retrieve),
    Route("DELETE", "/v1/files/{id}", files.delete),
    # The route below is for callers behind a gateway that accepts only GET and POST.
    Route("POST", "/v1/files/{id}/delete", files.delete),
    Route("GET", files.CONTENT_PATH, files.read_content, streams=True),
    Route("POST", "/v1/unload_lora_adapter", models.unload_adapter),
    Route("POST", "/v1/batches", batches.create),
    Route("GET", "/v1/batches", batches.list_batches),
    Route("GET", "/v1/batches/{batch_id}", batches.retrieve),
    Route("POST", "/v1/batches/{batch_id}/cancel", batches.cancel),
    Route("POST", fine_tuning.JOBS_PATH, fine_tuning.create),
    Route("GET", fine_tuning.JOBS_PATH, fine_tuning.list_jobs),
    Route("GET", fine_tuning.JOB_PATH, fine_tuning.retrieve),
    Route("POST", f"{fine_tuning.JOB_PATH}/cancel", fine_tuning.cancel),
    Route("POST", f"{fine_tuning.JOB_PATH}/pause", fine_tuning.pause),
    Route("POST", f"{fine_tuning.JOB_PATH}/resume", fine_tuning.resume),
    Route("GET", f"{fine_tuning.JOB_PATH}/events", fine_tuning.list_events),
    Route("GET", f"{fine_tuning.JOB_PATH}/checkpoints", fine_tuning.list_checkpoints),
)
