"""The dialect of Scale's LLM Engine: the routes that its client calls.

``completions`` answers a prompt with one generation of the engine, on two routes and in jobs with
``"format": "llm_engine"``. ``batches`` creates and describes batches: a request is converted to the
lines of a batch's input file (``batch_inputs``), and the results are written as one array
(``batch_output``). ``fine_tunes`` and ``models`` describe the same objects as OpenAI's routes. The
client uses OpenAI's routes for files.
"""

from typing import Any

from worker.dialects.llm_engine import batches, completions, fine_tunes, models
from worker.job import OpenAIJob
from worker.routes.route import Route

FINE_TUNES_PATH = "/v1/llm/fine-tunes"
BATCHES_PATH = "/v2/batch-completions"

ROUTES = (
    Route("POST", "/v1/llm/completions-sync", generate=completions.complete_prompt),
    Route(
        "POST", "/v1/llm/completions-stream", streams=True, generate=completions.stream_completion
    ),
    Route("GET", models.ENDPOINTS_PATH, models.list_endpoints),
    Route("POST", models.ENDPOINTS_PATH, models.refuse_to_create_or_change),
    Route("POST", models.DOWNLOAD_PATH, models.make_download_links),
    Route("GET", models.FILE_PATH, models.refuse_adapter_file_in_job),
    Route("GET", models.ENDPOINT_PATH, models.retrieve),
    Route("PUT", models.ENDPOINT_PATH, models.refuse_to_create_or_change),
    Route("DELETE", models.ENDPOINT_PATH, models.delete_adapter),
    Route("POST", FINE_TUNES_PATH, fine_tunes.create),
    Route("GET", FINE_TUNES_PATH, fine_tunes.list_jobs),
    Route("GET", f"{FINE_TUNES_PATH}/{{id}}", fine_tunes.retrieve),
    Route("PUT", f"{FINE_TUNES_PATH}/{{id}}/cancel", fine_tunes.cancel),
    Route("GET", f"{FINE_TUNES_PATH}/{{id}}/events", fine_tunes.list_events),
    Route("POST", "/v1/llm/batch-completions", batches.create_v1),
    Route("POST", BATCHES_PATH, batches.create_v2),
    Route("GET", BATCHES_PATH, batches.list_jobs),
    Route("GET", f"{BATCHES_PATH}/{{job_id}}", batches.retrieve),
    Route("POST", f"{BATCHES_PATH}/{{job_id}}", batches.update_priority),
    Route("POST", f"{BATCHES_PATH}/{{job_id}}/actions/cancel", batches.cancel),
)


# Statuses for which LLM Engine's client has an exception class. Statuses from 500 share one class.
CLIENT_ERRORS = (400, 401, 404, 429)


def is_llm_engine_request(path: str, scheme: str) -> bool:
    """Return whether LLM Engine's client sent an HTTP request.

    LLM Engine and OpenAI share the paths of files, but only LLM Engine's client sends Basic as the
    ``scheme`` of the Authorization header, here in lower case.
    """
    return scheme == "basic" or OpenAIJob(route=path).path.startswith(("/llm/", BATCHES_PATH))


def error_response(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return an error's status and body for LLM Engine's client: OpenAI's body with ``detail``."""
    error = body["error"]
    has_client_class = error["code"] in CLIENT_ERRORS or error["code"] >= 500
    status = error["code"] if has_client_class else 400
    return status, {"detail": error["message"], **body, "error": {**error, "code": status}}
