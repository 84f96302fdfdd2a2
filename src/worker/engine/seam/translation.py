"""Translation of vLLM's exceptions and refusals to the worker's errors."""

import contextlib
import re
import traceback
from collections.abc import Callable, Iterator
from http import HTTPStatus
from textwrap import shorten
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

from worker.engine.seam.body_errors import invalid_body_error
from worker.engine.seam.locations import import_from_vllm
from worker.engine.seam.protocols import Client
from worker.errors import (
    MAX_MESSAGE_LENGTH,
    EngineBusy,
    EngineDead,
    InvalidInput,
    RefusedByEngine,
    WorkerError,
    replace_options_by_settings,
)

# Timestamp and location in xgrammar's own source, at the start of its messages.
SOURCE_LOCATION = re.compile(r"\[\d\d:\d\d:\d\d\] /[A-Za-z0-9_./-]{1,100}:\d{1,6}: ")

_SENTENCE_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)[.!?](?= [A-Z])")

NO_CHAT_TEMPLATE = (
    "The model has no chat template, so messages can't be turned into a prompt: set "
    "CUSTOM_CHAT_TEMPLATE on the endpoint, or send a prompt."
)

# File name that Jinja has for the code of a template.
TEMPLATE_CODE = "<template>"
TEMPLATE_REFUSES = (
    "The model's chat template refuses this conversation: {} (CUSTOM_CHAT_TEMPLATE on the endpoint "
    "sets another template)"
)
# Beginning of the message of transformers for a message that can't be continued. Its end quotes the
# whole conversation.
NOT_CONTINUED = "continue_final_message is set but the final message does not appear"
CAN_NOT_CONTINUE = (
    "The model's chat template changes the last message or leaves it out, so that the model can't "
    "continue it: end with a message of the user"
)

# The tokenizer's message for half of a surrogate pair, and its replacement.
NOT_ENCODED = (
    "TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]"
)
HALF_CHARACTER = "A text contains half of a surrogate pair, which is not a character."

# Replacements for messages that suggest a form of input that the worker refuses, or no remedy.
REPLACED_MESSAGES = {
    "Either prompt or prompt_embeds must be provided and non-empty.": (
        "prompt: a text that is not empty, a list of token ids, or a list of either"
    ),
    NOT_ENCODED: HALF_CHARACTER,
}


def shorten_to_sentences(text: str, max_length: int) -> str:
    """Return a text in one line; if it is too long, the whole sentences that fit, or an excerpt."""
    line = " ".join(text.split())
    if len(line) <= max_length:
        return line
    ends = [match.end() for match in _SENTENCE_END.finditer(line) if match.end() <= max_length]
    return line[: ends[-1]] if ends else shorten(line, max_length, placeholder=" …")


def _safe_error_message(error: Exception) -> str:
    # Not ``str(error)``: vLLM appends the refused value to it, which can be the prompt.
    if not error.args:
        return type(error).__name__
    # Truncate before anything else reads the message, since it may quote the request.
    message = replace_options_by_settings(
        SOURCE_LOCATION.sub("", str(error.args[0])[:MAX_MESSAGE_LENGTH])
    )
    if message.startswith(NOT_CONTINUED):
        return CAN_NOT_CONTINUE
    return REPLACED_MESSAGES.get(message, message)


def _is_template_error(error: object) -> bool:
    """Return whether an object is an exception that the code of a chat template has raised."""
    if not isinstance(error, Exception):
        return False
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return isinstance(error, TemplateError) or any(
        frame.f_code.co_filename == TEMPLATE_CODE for frame in frames
    )


def _refusal_factory(status: HTTPStatus) -> Callable[[Any], WorkerError]:
    return lambda error: RefusedByEngine(
        _safe_error_message(error), status=status, param=getattr(error, "parameter", None)
    )


# Exceptions, the most specific first, each with a function that makes the worker's error. The
# status codes are those of vLLM's own server.
TRANSLATIONS: tuple[tuple[type[Exception] | tuple[()], Callable[[Any], WorkerError]], ...] = (
    (EngineDeadError, lambda _: EngineDead()),
    # Some supported releases lack this exception; no object is an instance of ().
    (
        getattr(vllm.exceptions, "RetryableRequestError", ()),
        lambda error: EngineBusy(_safe_error_message(error)),
    ),
    (GracefulHTTPError, lambda error: _refusal_factory(error.http_status)(error)),
    (VLLMNotFoundError, _refusal_factory(HTTPStatus.NOT_FOUND)),
    (VLLMUnprocessableEntityError, _refusal_factory(HTTPStatus.UNPROCESSABLE_ENTITY)),
    (import_from_vllm("ChatTemplateResolutionError"), lambda _: InvalidInput(NO_CHAT_TEMPLATE)),
    (VLLMClientError, _refusal_factory(HTTPStatus.BAD_REQUEST)),
    (UnicodeError, lambda _: InvalidInput(HALF_CHARACTER)),
    (RecursionError, lambda _: InvalidInput("A value is nested too deeply.")),
    (ValidationError, invalid_body_error),
    (RequestValidationError, invalid_body_error),
    # Refusals for which vLLM raises Python's own exceptions.
    (ValueError, lambda error: InvalidInput(_safe_error_message(error))),
    (TypeError, lambda error: InvalidInput(_safe_error_message(error))),
    (OverflowError, lambda _: InvalidInput("An integer has more than 64 bits.")),
    (NotImplementedError, lambda error: InvalidInput(_safe_error_message(error))),
)


# Exceptions that vLLM raises at startup for invalid settings or models.
START_ERRORS = (
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    VLLMError,
)

# Phrases in the errors of a core that requested more memory than it could get.
OUT_OF_MEMORY_SIGNS = (
    "OutOfMemoryError",
    "out of memory",
    "can't allocate memory",
    "is less than desired GPU memory utilization",
)


def is_out_of_memory(reason: str) -> bool:
    """Return whether an engine's error says that it got less memory than it requested."""
    return any(sign in reason for sign in OUT_OF_MEMORY_SIGNS)


def translate_error(error: object) -> WorkerError | None:
    """Return the worker's error for an exception of vLLM; None for bugs and for other objects."""
    # vLLM wraps an unexpected exception in ``EngineGenerateError``: translate the cause.
    if isinstance(error, EngineGenerateError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    # vLLM raises its own exception, with the message of the template's as the cause.
    if isinstance(error, Exception) and any(map(_is_template_error, (error, error.__cause__))):
        return InvalidInput(TEMPLATE_REFUSES.format(_safe_error_message(error)))
    return next((make(error) for class_, make in TRANSLATIONS if isinstance(error, class_)), None)


# Exceptions that decoding media can raise, in addition to those in ``TRANSLATIONS``.
MEDIA_ERRORS = (
    DecompressionBombError,
    OSError,
    RuntimeError,
)
MAX_REASON_CHARACTERS = 200  # some reasons quote the image


@contextlib.contextmanager
def translate_errors(client: Client, *, has_media: bool = False) -> Iterator[None]:
    """Translate vLLM's exceptions to the worker's errors; others, which are bugs, pass unchanged.

    If the client is dead, every exception becomes ``EngineDead``. With ``has_media``, failures to
    decode media are translated, too.
    """
    try:
        yield
    # A dead engine fails its callers with any exception.
    except Exception as error:
        if client.errored:
            raise EngineDead from error
        if (translation := translate_error(error)) is not None:
            raise translation from error
        if not has_media or not isinstance(error, MEDIA_ERRORS):
            raise
        message = str(error)[:MAX_REASON_CHARACTERS]
        raise InvalidInput(f"A part of the messages could not be loaded: {message}") from error


def raise_for_error_response(answer: Any) -> Any:
    """Return a result of vLLM's server; raise ``RefusedByEngine`` if it is an error."""
    if isinstance(answer, import_from_vllm("ErrorResponse")):
        error = answer.error
        raise RefusedByEngine(error.message, status=error.code, param=error.param)
    return answer
