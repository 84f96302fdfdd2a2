"""LLM Engine's errors, and their HTTP statuses."""

import json


class BadRequestError(Exception):
    """The request is invalid or refused; the message gives the reason."""


class UnauthorizedError(Exception):
    """The platform does not accept the key."""


class NotFoundError(Exception):
    """No such model, file, batch, fine-tune or endpoint exists."""


class RateLimitExceededError(Exception):
    """The client has sent too many requests."""


class ServerError(Exception):
    """The endpoint or the platform failed to respond."""

    def __init__(self, status_code: int, message: str) -> None:
        super().__init__(f"{status_code=}, {message=}")
        self.status_code = status_code


class UnknownError(Exception):
    """The response has a status that is not an HTTP error."""


class ValidationError(Exception):
    """Never raised, but scripts may catch it. Invalid requests raise ``BadRequestError``."""


_ERROR_BY_STATUS = {401: UnauthorizedError, 404: NotFoundError, 429: RateLimitExceededError}


def error_for_status(status: int, message: str) -> Exception:
    if 500 <= status <= 599:
        return ServerError(status, message)
    if 400 <= status <= 499:
        return _ERROR_BY_STATUS.get(status, BadRequestError)(message)
    return UnknownError(message)


def error_from_response(status: int, content: bytes) -> Exception:
    """Return the error of a response, whose body is ``{"detail": …}`` or any text."""
    text = content.decode(errors="replace")
    try:
        detail = json.loads(text)["detail"]
    except (ValueError, KeyError, TypeError):
        detail = text
    return error_for_status(status, str(detail))
