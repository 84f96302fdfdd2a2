"""Scale's LLM Engine: the routes that its client calls; its files are OpenAI's."""

from worker.dialects.llm_engine import batches, completions, fine_tunes, models
from worker.routes.route import Route

FINE_TUNES = "/v1/llm/fine-tunes"
BATCHES = "/v2/batch-completions"

ROUTES = (
    Route("POST", "/v1/llm/completions-sync", generate=completions.whole),
    Route("POST", "/v1/llm/completions-stream", streams=True, generate=completions.streamed),
    Route("GET", models.ENDPOINTS, models.listed),
    Route("POST", models.ENDPOINTS, models.create),
    Route("POST", models.DOWNLOAD, models.download),
    Route("GET", models.FILE, models.file),
    Route("GET", models.ENDPOINT, models.described),
    Route("PUT", models.ENDPOINT, models.create),
    Route("DELETE", models.ENDPOINT, models.delete),
    Route("POST", FINE_TUNES, fine_tunes.create),
    Route("GET", FINE_TUNES, fine_tunes.listed),
    Route("GET", f"{FINE_TUNES}/{{id}}", fine_tunes.retrieve),
    Route("PUT", f"{FINE_TUNES}/{{id}}/cancel", fine_tunes.cancel),
    Route("GET", f"{FINE_TUNES}/{{id}}/events", fine_tunes.list_events),
    Route("POST", "/v1/llm/batch-completions", batches.create_v1),
    Route("POST", BATCHES, batches.create_v2),
    Route("GET", BATCHES, batches.listed),
    Route("GET", f"{BATCHES}/{{job_id}}", batches.retrieve),
    Route("POST", f"{BATCHES}/{{job_id}}", batches.update),
    Route("POST", f"{BATCHES}/{{job_id}}/actions/cancel", batches.cancel),
)


def is_its(path: str) -> bool:
    """Return whether a path, without /v1, is one that LLM Engine's client alone calls."""
    return path.startswith(("/llm/", BATCHES))
