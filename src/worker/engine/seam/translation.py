"""vLLM's exceptions and refusals, translated to the worker's errors in one place."""

import contextlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

import vllm.exceptions
from fastapi.exceptions import RequestValidationError
from jinja2 import TemplateError
from PIL.Image import DecompressionBombError
from pydantic import ValidationError
from vllm.exceptions import (
    GracefulHTTPError,
    VLLMClientError,
    VLLMError,
    VLLMNotFoundError,
    VLLMUnprocessableEntityError,
)
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from worker.engine.seam.locations import find
from worker.engine.seam.protocols import Client
from worker.errors import (
    LONGEST_MESSAGE,
    EngineBusy,
    EngineDead,
    InvalidInput,
    RefusedByEngine,
    WorkerError,
    in_settings,
)
from worker.validation import MOST_MISTAKES

# Names and indexes in pydantic's locations; other parts are labels of a union's alternatives.
FIELD = re.compile(r"[a-z0-9_]+")
TYPES = frozenset({"str", "int", "float", "bool", "dict", "list"})

# When and where in xgrammar's own source a complaint was made.
SOURCE = re.compile(r"\[\d\d:\d\d:\d\d\] /[A-Za-z0-9_./-]{1,100}:\d{1,6}: ")

# Complaints that are read for a message: a long list of mistakes has one for each alternative.
MOST_READ = 1_000

NO_CHAT_TEMPLATE = (
    "The model has no chat template, so messages can't be turned into a prompt: set "
    "CUSTOM_CHAT_TEMPLATE on the endpoint, or send a prompt."
)

# Messages that offer what the worker refuses, with what is said in their place.
OTHER_WORDS = {
    "Either prompt or prompt_embeds must be provided and non-empty.": (
        "prompt: a text that is not empty, a list of token ids, or a list of either"
    ),
}


def _message(error: Exception) -> str:
    # Not str(error): vLLM appends the refused value to it, and that can be the prompt.
    if not error.args:
        return type(error).__name__
    # Cut before anything else reads it: it may quote the request.
    message = in_settings(SOURCE.sub("", str(error.args[0])[:LONGEST_MESSAGE]))
    return OTHER_WORDS.get(message, message)


def _refused(status: HTTPStatus) -> Callable[[Any], WorkerError]:
    return lambda error: RefusedByEngine(
        _message(error), status=status, param=getattr(error, "parameter", None)
    )


def wrong_shape(invalid: ValidationError | RequestValidationError) -> InvalidInput:
    """Return the error for a body of the wrong shape: its message names fields, not values."""
    wrong: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for error in invalid.errors()[:MOST_READ]:
        place, of_alternative = _place(error["loc"])
        field = place.rpartition(".")[0] if of_alternative else place
        wrong[field][f"{place}: {error['msg']}"] += 1
    # Each alternative of a union complains: the most common complaint is kept.
    messages = [lines.most_common(1)[0][0] for lines in wrong.values()][:MOST_MISTAKES]
    param = messages[0].split(":")[0] if messages else None
    return InvalidInput("; ".join(messages), param=param)


def _place(location: tuple[int | str, ...]) -> tuple[str, bool]:
    """Return a field's path, and whether it is inside an alternative of a union."""
    parts = [str(part) for part in location]
    # FastAPI's locations begin with the part of the request.
    parts = parts[1:] if parts[:1] == ["body"] else parts
    named = [part for part in parts if FIELD.fullmatch(part) and part not in TYPES]
    return ".".join(named), len(named) < len(parts)


# Most specific first. The worker answers as vLLM's own server would.
TABLE: tuple[tuple[type[Exception] | tuple[()], Callable[[Any], WorkerError]], ...] = (
    (EngineDeadError, lambda _: EngineDead()),
    # Some supported releases lack it, and nothing is an instance of ().
    (
        getattr(vllm.exceptions, "RetryableRequestError", ()),
        lambda error: EngineBusy(_message(error)),
    ),
    (GracefulHTTPError, lambda error: _refused(error.http_status)(error)),
    (VLLMNotFoundError, _refused(HTTPStatus.NOT_FOUND)),
    (VLLMUnprocessableEntityError, _refused(HTTPStatus.UNPROCESSABLE_ENTITY)),
    (VLLMClientError, _refused(HTTPStatus.BAD_REQUEST)),
    (find("ChatTemplateResolutionError"), lambda _: InvalidInput(NO_CHAT_TEMPLATE)),
    (TemplateError, lambda error: InvalidInput(f"The chat template failed: {_message(error)}")),
    (UnicodeError, lambda _: InvalidInput("A text holds half of a surrogate pair: no character.")),
    (RecursionError, lambda _: InvalidInput("A value is nested too deeply.")),
    (ValidationError, wrong_shape),
    (RequestValidationError, wrong_shape),
    # Refusals for which vLLM has no class of its own yet.
    (ValueError, lambda error: InvalidInput(_message(error))),
    (TypeError, lambda error: InvalidInput(_message(error))),
    (OverflowError, lambda _: InvalidInput("An integer has more than 64 bits.")),
    (NotImplementedError, lambda error: InvalidInput(_message(error))),
)


# What vLLM raises for settings, or for a model, that it can't start with.
START_ERRORS = (
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    VLLMError,
)

# What a core says that has not got the memory that it asked for, and would get less.
OUT_OF_MEMORY = (
    "OutOfMemoryError",
    "out of memory",
    "can't allocate memory",
    "is less than desired GPU memory utilization",
)


def is_out_of_memory(reason: str) -> bool:
    """Whether an engine did not start, or died, because it got less memory than it asked for."""
    return any(sign in reason for sign in OUT_OF_MEMORY)


def translate(error: object) -> WorkerError | None:
    """Return the worker's error for one of vLLM's; None for a defect, and for what is no error."""
    # The engine raises this one with an unexpected exception as its cause.
    if isinstance(error, EngineGenerateError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return next((make(error) for class_, make in TABLE if isinstance(error, class_)), None)


# What decoding an image raises, besides what vLLM translates itself.
MEDIA_ERRORS = (
    DecompressionBombError,
    OSError,
    RuntimeError,
)
LONGEST_REASON = 200  # characters: some quote the image


@contextlib.contextmanager
def translated(client: Client, *, shows_media: bool = False) -> Iterator[None]:
    """Raise vLLM's exceptions as the worker's; a defect passes unchanged.

    Args:
        client: vLLM's AsyncLLM. If it is dead, whatever is raised becomes ``EngineDead``.
        shows_media: whether the request holds media, which can fail to be decoded.
    """
    try:
        yield
    except Exception as error:
        if client.errored:
            raise EngineDead from error
        if (known := translate(error)) is not None:
            raise known from error
        if not shows_media or not isinstance(error, MEDIA_ERRORS):
            raise
        message = str(error)[:LONGEST_REASON]
        raise InvalidInput(f"A part of the messages could not be loaded: {message}") from error


def accepted(answer: Any) -> Any:
    """Return what a part of vLLM's server answered, unless that is an error.

    Raises:
        RefusedByEngine: for an ``ErrorResponse``, which vLLM returns instead of raising.
    """
    if isinstance(answer, find("ErrorResponse")):
        error = answer.error
        raise RefusedByEngine(error.message, status=error.code, param=error.param)
    return answer
