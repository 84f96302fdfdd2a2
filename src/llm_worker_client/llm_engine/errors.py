"""LLM Engine's errors, by the status of an answer."""

import json


class BadRequestError(Exception):
    """The request is wrong; the message names the argument."""


class UnauthorizedError(Exception):
    """The platform does not accept the key."""


class NotFoundError(Exception):
    """There is no such model, file, batch, fine-tune or endpoint."""


class RateLimitExceededError(Exception):
    """There are too many requests."""


class ServerError(Exception):
    """The endpoint, or the platform, could not answer.

    Args:
        status_code: of HTTP.
        message: what went wrong.
    """

    def __init__(self, status_code: int, message: str) -> None:
        super().__init__(f"{status_code=}, {message=}")
        self.status_code = status_code


class UnknownError(Exception):
    """The status of an answer has no other class: it is no error of HTTP."""


class ValidationError(Exception):
    """For scripts that catch it; the worker answers with ``BadRequestError`` instead."""


_CLASSES = {401: UnauthorizedError, 404: NotFoundError, 429: RateLimitExceededError}


def error_of(status: int, message: str) -> Exception:
    """Return the error for a status that is not 200."""
    if 500 <= status <= 599:
        return ServerError(status, message)
    if 400 <= status <= 499:
        return _CLASSES.get(status, BadRequestError)(message)
    return UnknownError(message)


def error_in(status: int, content: bytes) -> Exception:
    """Return the error that an answer is: ``{"detail": …}``, or any text."""
    text = content.decode(errors="replace")
    try:
        detail = json.loads(text)["detail"]
    except (ValueError, KeyError, TypeError):
        detail = text
    return error_of(status, str(detail))
