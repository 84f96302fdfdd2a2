"""Errors as clients read them: OpenAI's, Anthropic's and LLM Engine's."""

import json
from enum import StrEnum, auto
from http import HTTPStatus
from typing import Any

CLIENT_CLOSED_REQUEST = 499
# Of LLM Engine's client: what it has an exception for, besides 5xx.
_KNOWN = (400, 401, 404, 429)


class Dialect(StrEnum):
    """Whose client reads the answer."""

    OPENAI = auto()
    ANTHROPIC = auto()
    LLM_ENGINE = auto()


class Refusal(Exception):
    """A request that is answered with an error.

    Args:
        status: of HTTP.
        message: for the caller.
        error: the worker's own error object, if it is the worker's.
        retry_after_s: when another try may help.
    """

    def __init__(
        self,
        status: int,
        message: str,
        error: dict[str, Any] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error = error or {
            "message": message,
            "type": _type_of(status),
            "param": None,
            "code": status,
        }
        self.retry_after_s = retry_after_s

    def in_dialect(self, dialect: Dialect) -> tuple[int, dict[str, Any]]:
        """Return the status and the body for a client."""
        if dialect is Dialect.ANTHROPIC:
            return self.status, {"type": "error", "error": self.error}
        if dialect is Dialect.OPENAI:
            return self.status, {"error": self.error}
        status = self.status
        if status == CLIENT_CLOSED_REQUEST:
            status = 500
        elif status not in _KNOWN and status < 500:
            status = 400
        return status, {"detail": self.error.get("message"), "error": self.error}


def refusal_of(report: dict[str, Any]) -> Refusal:
    """Return how a job has failed.

    Args:
        report: the platform's, of a job that has ended other than ``COMPLETED``.
    """
    id, status, error = report.get("id"), report.get("status"), report.get("error")
    if status == "CANCELLED":
        return Refusal(CLIENT_CLOSED_REQUEST, f"The job {id} was cancelled.")
    if status == "TIMED_OUT":
        return Refusal(504, f"The job {id} was ended for its time: {error or 'it is over'}.")
    found = _error_object(error)
    if found is None:
        return Refusal(500, str(error or "The job failed without an error."))
    code = found.get("code")
    known = code if isinstance(code, int) and 400 <= code <= 599 else 500
    retry_after = found.get("retry_after", 1) if found.get("retryable") else None
    return Refusal(known, str(found.get("message")), found, retry_after)


def _error_object(error: Any) -> dict[str, Any] | None:
    """Return the worker's error object, which the platform passes on as text."""
    body = error
    if isinstance(error, str):
        try:
            body = json.loads(error)
        except ValueError:
            return None
    found = body.get("error") if isinstance(body, dict) else None
    return found if isinstance(found, dict) else None


def _type_of(status: int) -> str:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        return "Error"
    return phrase.title().replace(" ", "").replace("-", "").removesuffix("Error") + "Error"
