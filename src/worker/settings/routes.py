"""The names that DISABLED_ROUTES takes: routes, and groups of routes and of jobs.

``worker.dialects.table`` has the routes themselves. It is loaded after the settings are checked, so
the names are listed here as well, and a test compares them.
"""

from collections.abc import Iterator, Mapping
from functools import cache

from worker.validation import find_similar_names

# The routes of each group.
_GROUPS = {
    # All that transfers files from or to the volume, adapters' files as well.
    "files": """
        GET|POST /v1/files
        GET|DELETE /v1/files/{id}
        POST /v1/files/{id}/delete
        GET /v1/files/{id}/content
        POST /v1/llm/model-endpoints/download
        GET /v1/llm/model-files/{name}/{file}
        """,
    "batches": """
        GET|POST /v1/batches
        GET /v1/batches/{batch_id}
        POST /v1/batches/{batch_id}/cancel
        POST /v1/llm/batch-completions
        GET|POST /v2/batch-completions
        GET|POST /v2/batch-completions/{job_id}
        POST /v2/batch-completions/{job_id}/actions/cancel
        """,
    # Deleting a model deletes a fine-tuned adapter.
    "fine-tunes": """
        GET|POST /v1/fine_tuning/jobs
        GET /v1/fine_tuning/jobs/{fine_tuning_job_id}
        POST /v1/fine_tuning/jobs/{fine_tuning_job_id}/cancel
        POST /v1/fine_tuning/jobs/{fine_tuning_job_id}/pause
        POST /v1/fine_tuning/jobs/{fine_tuning_job_id}/resume
        GET /v1/fine_tuning/jobs/{fine_tuning_job_id}/events
        GET /v1/fine_tuning/jobs/{fine_tuning_job_id}/checkpoints
        GET|POST /v1/llm/fine-tunes
        GET /v1/llm/fine-tunes/{id}
        PUT /v1/llm/fine-tunes/{id}/cancel
        GET /v1/llm/fine-tunes/{id}/events
        DELETE /v1/models/{model}
        DELETE /v1/llm/model-endpoints/{name}
        """,
}
_OTHER_ROUTES = """
    POST /v1/chat/completions
    POST /v1/completions
    POST /v1/responses
    POST /v1/messages
    POST /v1/messages/count_tokens
    POST /v1/embeddings
    POST /score
    POST /rerank
    POST /pooling
    POST /tokenize
    POST /detokenize
    GET /v1/models
    GET /v1/models/{model}
    POST /v1/unload_lora_adapter
    POST /v1/llm/completions-sync
    POST /v1/llm/completions-stream
    GET|POST /v1/llm/model-endpoints
    GET|PUT /v1/llm/model-endpoints/{name}
    GET /version
    GET /metrics
    GET /openapi.json
    GET /chat
    """
# Routes that load balancers, and the check of a worker that starts, request.
REQUIRED_ROUTES = frozenset({"GET /health"})
# The kind of the jobs that a group contains, in addition to its routes.
JOB_KINDS = {"batches": "batch", "fine-tunes": "fine_tune"}
LONG_WORK = "long-work"


def _split_rows(rows: str) -> Iterator[str]:
    for row in rows.strip().splitlines():
        methods, path = row.split()
        yield from (f"{method} {path}" for method in methods.split("|"))


ROUTES_BY_GROUP: Mapping[str, frozenset[str]] = {
    group: frozenset(_split_rows(rows)) for group, rows in _GROUPS.items()
}
OPTIONAL_ROUTES = frozenset(_split_rows(_OTHER_ROUTES)).union(*ROUTES_BY_GROUP.values())
GROUP_NAMES = (*ROUTES_BY_GROUP, LONG_WORK)


@cache
def find_disabled(names: tuple[str, ...]) -> frozenset[str]:
    """Return the routes ("GET /v1/files") and the kinds of jobs ("batch") that names disable.

    A name is a group, a route, or a path, which stands for its routes with all methods. For another
    name, the message of the ``ValueError`` has a similar one, or all groups.
    """
    disabled: set[str] = set()
    for name in names:
        wanted = _without_version(name)
        groups = [*ROUTES_BY_GROUP] if name == LONG_WORK else [name]
        found = {
            route
            for route in OPTIONAL_ROUTES
            if wanted in (_without_version(route), _without_version(route.split()[1]))
        }.union(*(ROUTES_BY_GROUP.get(group, ()) for group in groups))
        if not found:
            raise ValueError(_unknown_name_message(name))
        disabled |= found | {JOB_KINDS[group] for group in groups if group in JOB_KINDS}
    return frozenset(disabled)


def _without_version(name: str) -> str:
    """Return a route or a path without ``/v1``, which is optional as in requests."""
    method, _, path = name.rpartition(" ")
    return f"{method.upper()} {path.removeprefix('/v1')}".strip()


def _unknown_name_message(name: str) -> str:
    if f"GET {_without_version(name).removeprefix('GET ')}" in REQUIRED_ROUTES:
        return f"{name!r} is requested by load balancers, and by the worker when it starts"
    paths = {route.split()[1] for route in OPTIONAL_ROUTES}
    similar = find_similar_names(name, sorted(paths | OPTIONAL_ROUTES | {*GROUP_NAMES}))
    if similar:
        return f"did you mean {similar[0]!r} instead of {name!r}?"
    return f"{name!r} is neither a route nor one of {', '.join(GROUP_NAMES)}"
