"""Errors in the formats of OpenAI's, Anthropic's and LLM Engine's clients."""

import json
from enum import StrEnum, auto
from http import HTTPStatus
from typing import Any

CLIENT_CLOSED_REQUEST = 499
# Status of the platform's gateway when it gives up: the job may run, and a retry would be another.
GATEWAY_GAVE_UP = 524
# Statuses below 500 for which LLM Engine's client has an exception.
_LLM_ENGINE_STATUSES = (400, 401, 404, 429)


class Dialect(StrEnum):
    """The API that a client uses, which determines the format of the responses."""

    OPENAI = auto()
    ANTHROPIC = auto()
    LLM_ENGINE = auto()


class Refusal(Exception):
    """The error with which a request is answered.

    Args:
        status: HTTP status.
        message: Message for the caller.
        error: Error object, if the worker has sent one.
        retry_after_s: Seconds after which a retry may succeed; None if a retry can't succeed.
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
            "type": _error_type(status),
            "param": None,
            "code": status,
        }
        self.retry_after_s = retry_after_s

    def to_status_and_body(self, dialect: Dialect) -> tuple[int, dict[str, Any]]:
        """Return a status that the client's library has an exception for, and the body."""
        if dialect is Dialect.ANTHROPIC:
            return self.status, {"type": "error", "error": self.error}
        if dialect is Dialect.OPENAI:
            return self.status, {"error": self.error}
        status = self.status
        if status == CLIENT_CLOSED_REQUEST:
            status = 500
        elif status not in _LLM_ENGINE_STATUSES and status < 500:
            status = 400
        return status, {"detail": self.error.get("message"), "error": self.error}


def refusal_from_report(report: dict[str, Any]) -> Refusal:
    """Return the error of a job that has ended with a status other than ``COMPLETED``."""
    id, status, error = report.get("id"), report.get("status"), report.get("error")
    if status == "CANCELLED":
        return Refusal(CLIENT_CLOSED_REQUEST, f"The job {id} was cancelled.")
    if status == "TIMED_OUT":
        return Refusal(504, f"The job {id} ran out of time: {error or 'its time limit is over'}.")
    error_object = _parse_error_object(error)
    if error_object is None:
        return Refusal(500, str(error or "The job failed without an error."))
    code = error_object.get("code")
    http_status = code if isinstance(code, int) and 400 <= code <= 599 else 500
    retry_after = error_object.get("retry_after", 1) if error_object.get("retryable") else None
    return Refusal(http_status, str(error_object.get("message")), error_object, retry_after)


def _parse_error_object(error: Any) -> dict[str, Any] | None:
    """Return the worker's error object or None; the platform forwards it as a JSON string."""
    body = error
    if isinstance(error, str):
        try:
            body = json.loads(error)
        except ValueError:
            return None
    error_object = body.get("error") if isinstance(body, dict) else None
    return error_object if isinstance(error_object, dict) else None


def _error_type(status: int) -> str:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        return "Error"
    return phrase.title().replace(" ", "").replace("-", "").removesuffix("Error") + "Error"
