"""What LLM Engine's client expects of HTTP, besides its routes."""

from typing import Any

from starlette.datastructures import Headers
from starlette.types import Scope

from worker.dialects import llm_engine
from worker.job import OpenAIJob
from worker.serve.keys import authorization

# The statuses of errors that it has a class for; those of 500 and more have one together.
CLIENT_ERRORS = (400, 401, 404, 429)


def asks(scope: Scope) -> bool:
    """Return whether a request is that client's: it sends Basic, and has routes of its own."""
    basic = authorization(Headers(scope=scope))[0] == "basic"
    return basic or llm_engine.is_its(OpenAIJob(route=scope["path"]).path)


def refusal(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return an error as that client reads it: its status, and a body with ``detail``.

    Args:
        body: the error in OpenAI's shape, which stays in it.
    """
    error = body["error"]
    known = error["code"] in CLIENT_ERRORS or error["code"] >= 500
    status = error["code"] if known else 400
    return status, {"detail": error["message"], **body, "error": {**error, "code": status}}
