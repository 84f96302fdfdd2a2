"""vLLM's exceptions become the worker's, once, at this border."""

import contextlib
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from jinja2 import TemplateError
from pydantic import ValidationError

from worker.engine.locations import find
from worker.errors import EngineBusy, EngineDead, InvalidInput, RefusedByEngine, WorkerError
from worker.job.base import MOST_TOLD

NO_CHAT_TEMPLATE = (
    "The model has no chat template, so messages can't be turned into a prompt: set "
    "CUSTOM_CHAT_TEMPLATE on the endpoint, or send a prompt."
)


def _message(error: Exception) -> str:
    # Not str(error): vLLM appends the refused value to it, and that can be the prompt.
    return str(error.args[0]) if error.args else type(error).__name__


def _refused(status: HTTPStatus) -> Callable[[Any], WorkerError]:
    return lambda error: RefusedByEngine(
        _message(error), status=status, param=getattr(error, "parameter", None)
    )


def wrong_shape(invalid: ValidationError | RequestValidationError, skip: int = 0) -> InvalidInput:
    """Tell which fields are wrong, never what they held; places begin after ``skip`` parts."""
    errors = invalid.errors()[:MOST_TOLD]
    fields = [".".join(str(part) for part in error["loc"][skip:]) for error in errors]
    told = [f"{field}: {error['msg']}" for field, error in zip(fields, errors, strict=True)]
    return InvalidInput("; ".join(told), param=fields[0] if fields else None)


# What vLLM's engine raises in place of anything that it does not know.
WRAPPER: type[Exception] = find("EngineGenerateError")

# Most specific first; what vLLM's own server answers to each is what the worker answers.
TABLE: tuple[tuple[type[Exception], Callable[[Any], WorkerError]], ...] = (
    (find("EngineDeadError"), lambda _: EngineDead()),
    (find("RetryableRequestError"), lambda error: EngineBusy(_message(error))),
    (find("GracefulHTTPError"), lambda error: _refused(error.http_status)(error)),
    (find("VLLMNotFoundError"), _refused(HTTPStatus.NOT_FOUND)),
    (
        find("VLLMUnprocessableEntityError"),
        _refused(HTTPStatus.UNPROCESSABLE_ENTITY),
    ),
    (find("VLLMClientError"), _refused(HTTPStatus.BAD_REQUEST)),
    (find("ChatTemplateResolutionError"), lambda _: InvalidInput(NO_CHAT_TEMPLATE)),
    (TemplateError, lambda error: InvalidInput(f"The chat template failed: {_message(error)}")),
    (UnicodeError, lambda _: InvalidInput("A text holds half of a surrogate pair: no character.")),
    (RecursionError, lambda _: InvalidInput("A value is nested too deeply.")),
    (ValidationError, wrong_shape),
    # What vLLM has not given a class of its own yet.
    (ValueError, lambda error: InvalidInput(_message(error))),
    (TypeError, lambda error: InvalidInput(_message(error))),
    (OverflowError, lambda error: InvalidInput(_message(error))),
)


KNOWN = (WRAPPER, *(class_ for class_, _ in TABLE))


def translate(error: Exception) -> WorkerError | None:
    """Return the worker's error for one of vLLM's; None for one that is a defect."""
    if isinstance(error, WRAPPER) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return next((make(error) for class_, make in TABLE if isinstance(error, class_)), None)


async def explain(_: Any, invalid: RequestValidationError) -> JSONResponse:
    """Answer a body of a wrong shape in vLLM's place."""
    told = wrong_shape(invalid, skip=1)
    error = {"message": told.message, "param": told.param}
    return JSONResponse({"error": error}, status_code=told.status)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise vLLM's exceptions as the worker's; a defect passes as it is."""
    try:
        yield
    except KNOWN as error:
        raise (translate(error) or error) from error
