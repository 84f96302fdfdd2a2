"""Scale's LLM Engine: the routes that its client calls; its files are OpenAI's."""

from typing import Any

from worker.dialects.llm_engine import batches, completions, fine_tunes, models
from worker.job import OpenAIJob
from worker.routes.route import Route

FINE_TUNES = "/v1/llm/fine-tunes"
BATCHES = "/v2/batch-completions"

ROUTES = (
    Route("POST", "/v1/llm/completions-sync", generate=completions.complete),
    Route("POST", "/v1/llm/completions-stream", streams=True, generate=completions.stream),
    Route("GET", models.ENDPOINTS, models.list_endpoints),
    Route("POST", models.ENDPOINTS, models.refuse_to_create),
    Route("POST", models.DOWNLOAD, models.download),
    Route("GET", models.FILE, models.file),
    Route("GET", models.ENDPOINT, models.retrieve),
    Route("PUT", models.ENDPOINT, models.refuse_to_create),
    Route("DELETE", models.ENDPOINT, models.delete),
    Route("POST", FINE_TUNES, fine_tunes.create),
    Route("GET", FINE_TUNES, fine_tunes.list_jobs),
    Route("GET", f"{FINE_TUNES}/{{id}}", fine_tunes.retrieve),
    Route("PUT", f"{FINE_TUNES}/{{id}}/cancel", fine_tunes.cancel),
    Route("GET", f"{FINE_TUNES}/{{id}}/events", fine_tunes.list_events),
    Route("POST", "/v1/llm/batch-completions", batches.create_v1),
    Route("POST", BATCHES, batches.create_v2),
    Route("GET", BATCHES, batches.list_jobs),
    Route("GET", f"{BATCHES}/{{job_id}}", batches.retrieve),
    Route("POST", f"{BATCHES}/{{job_id}}", batches.update),
    Route("POST", f"{BATCHES}/{{job_id}}/actions/cancel", batches.cancel),
)


# The statuses of errors that its client has a class for; those of 500 and more have one together.
CLIENT_ERRORS = (400, 401, 404, 429)


def asks(path: str, scheme: str) -> bool:
    """Return whether a request over HTTP is LLM Engine's client's.

    Args:
        path: one of its own routes, or of the files that it shares with OpenAI's.
        scheme: of the authorization: it alone sends Basic.
    """
    return scheme == "basic" or OpenAIJob(route=path).path.startswith(("/llm/", BATCHES))


def refusal(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return an error as its client reads it: the status, and a body with ``detail``.

    Args:
        body: the error in OpenAI's shape, which stays in it.
    """
    error = body["error"]
    known = error["code"] in CLIENT_ERRORS or error["code"] >= 500
    status = error["code"] if known else 400
    return status, {"detail": error["message"], **body, "error": {**error, "code": status}}
