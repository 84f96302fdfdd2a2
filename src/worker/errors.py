"""The error tree: every error has an HTTP status, and knows whether a retry can help.

WorkerError
├─ RequestError               the caller can correct the request
│  ├─ InvalidInput            400
│  ├─ Unauthorized            401
│  ├─ Forbidden               403
│  ├─ NoEngine                400: the worker only trains
│  ├─ UnknownRoute            404
│  ├─ NoSuchObject            404
│  ├─ WrongMethod             405
│  ├─ Conflict                409
│  ├─ InputTooLarge           413
│  ├─ AnswerTooLarge          413
│  └─ TooMuchUnfinishedWork   429, retryable: too many batches or fine-tunes have not ended
├─ ServerError                the caller can't correct it
│  ├─ StartFailed             503: no worker of the endpoint would start
│  │  ├─ SettingsError        all mistakes in the settings
│  │  ├─ ModelUnavailable     a model is neither on the disk nor downloadable
│  │  └─ MachineUnfit         another machine may work
│  ├─ EngineBusy              503, retryable
│  │  └─ EngineSuspended      503, retryable in a minute: a fine-tune needs the engine's memory
│  ├─ EngineDead              503, retryable: the engine died before the answer was complete
│  ├─ RequestKilledEngine     500: this request has probably killed the engine
│  ├─ BrokenStream            503, retryable: a part of the answer may be lost
│  ├─ ShuttingDown            503, retryable: this worker is shutting down
│  ├─ OnOtherVolume           503, retryable: a worker with another network volume can answer
│  ├─ VolumeError             507: the network volume is missing, full or read-only
│  └─ InternalError           500
└─ RefusedByEngine            vLLM refuses the request, with its own message and status
"""

import contextlib
import logging
import re
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any

from worker.masking import mask_secrets

log = logging.getLogger(__name__)

# Maximum characters of a message. It may quote the request, and a yield has a maximum size.
MAX_MESSAGE_LENGTH = 2_000


class WorkerError(Exception):
    """The error of a job. Callers see its message, so it contains no path, credential or prompt."""

    status: int = 500
    retryable = False
    # Seconds until a retry may succeed, if longer than usual.
    retry_after: int | None = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    @property
    def type(self) -> str:
        """Name of the status (BadRequestError), as vLLM's server and OpenAI's client spell it."""
        words = HTTPStatus(self.status).phrase.title().replace(" ", "")
        return words if words.endswith("Error") else f"{words}Error"

    def body(self, request_id: str | None = None) -> dict[str, Any]:
        """Return the error in OpenAI's format; ``code`` is the HTTP status."""
        retry_after = {} if self.retry_after is None else {"retry_after": self.retry_after}
        return {
            "error": {
                "message": _sanitize(self.message),
                "type": self.type,
                "param": self.param and _sanitize(self.param),
                "code": self.status,
                "retryable": self.retryable,
                **retry_after,
                "request_id": request_id,
            }
        }


# Matches one of vLLM's options in a message.
_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)+)")


def replace_options_by_settings(message: str) -> str:
    """Replace vLLM's options in a message by settings: --max-model-len by MAX_MODEL_LEN."""
    return _OPTION.sub(lambda flag: flag[1].replace("-", "_").upper(), message)


def _sanitize(text: str) -> str:
    """Make a string fit for a POST: truncate it, mask secrets and replace lone surrogates."""
    return mask_secrets(text)[:MAX_MESSAGE_LENGTH].encode(errors="replace").decode()


class RequestError(WorkerError):
    """An error that the caller can correct."""


class InvalidInput(RequestError):
    """The job's input matches none of the accepted formats, or a value in it is refused."""

    status = 400


def field_error(field: str, message: str, container: str = "") -> InvalidInput:
    """Return the error for a field of the input, whose path begins the message.

    ``container`` is the object with the field: the message has its name, and ``param`` does not.
    """
    path = f"{container}.{field}" if container else field
    return InvalidInput(f"{path}: {message}", param=field)


class Unauthorized(RequestError):
    """The server has a key, and the request lacks it."""

    status = 401

    def __init__(self) -> None:
        super().__init__("The request carries no key, or a wrong one: Authorization: Bearer <key>.")


class Forbidden(RequestError):
    """The request may come from a web page, and the server accepts only this machine's programs."""

    status = 403


class NoEngine(RequestError):
    """The worker was started with ``--train`` and has no engine."""

    status = 400

    def __init__(self) -> None:
        super().__init__(
            "This worker only trains adapters (--train), and has no engine to answer: send the "
            "request to an endpoint that serves the model."
        )


class UnknownRoute(RequestError):
    """The route doesn't exist, or this worker doesn't serve it."""

    status = 404


class NoSuchObject(RequestError):
    """No file, batch, fine-tune or adapter has this id."""

    status = 404


class Conflict(RequestError):
    """The state of an object does not allow the operation."""

    status = 409


class WrongMethod(RequestError):
    """The route does not support this method."""

    status = 405


class InputTooLarge(RequestError):
    """The job's input has more bytes than the operator allows."""

    status = 413


class AnswerTooLarge(RequestError):
    """The answer is too large for one yield and can't be split."""

    status = 413


class TooMuchUnfinishedWork(RequestError):
    """The volume has its maximum number of unfinished batches or fine-tunes."""

    status = 429
    retryable = True
    retry_after = 60


class ServerError(WorkerError):
    """An error that the caller can't correct."""


class StartFailed(ServerError):
    """The worker failed to start; if the cause affects all workers, callers get the error.

    Args:
        remedy: The setting or file to change, and how; blank if it is unknown.
        culprits: The options of vLLM that cause the failure, if they are known.
    """

    status = 503
    affects_all_workers = True

    def __init__(self, problem: str, remedy: str = "", culprits: Sequence[str] = ()) -> None:
        super().__init__(f"{problem}: {remedy}" if remedy else problem)
        self.problem = problem
        self.remedy = remedy
        self.culprits = tuple(culprits)


class MachineUnfit(StartFailed):
    """The worker failed to start because of its machine; another worker answers the jobs."""

    affects_all_workers = False


class EngineBusy(ServerError):
    """The worker or the engine's queue is full; another worker may have capacity."""

    status = 503
    retryable = True

    def __init__(self, message: str | None = None, *, param: str | None = None) -> None:
        full = "The worker has its maximum number of requests. Send the request again."
        super().__init__(message or full, param=param)


class EngineSuspended(EngineBusy):
    """The engine is suspended to free memory for a fine-tune, and restarts afterwards."""

    retry_after = 60

    def __init__(self) -> None:
        super().__init__(
            "The worker is fine-tuning the model, and can't answer until this has ended. "
            f"Send the request again in {self.retry_after} seconds."
        )


class EngineDead(ServerError):
    """The engine has died; another worker can answer."""

    status = 503
    retryable = True

    def __init__(self) -> None:
        super().__init__(
            "The engine that answers this request has died and is being replaced. "
            "Send the request again."
        )


class RequestKilledEngine(ServerError):
    """This request has probably killed the engine, and would kill another worker's engine, too."""

    status = 500

    def __init__(self) -> None:
        super().__init__(
            "The engine died when it started this request, so the request is not run again."
        )


class BrokenStream(ServerError):
    """A part of a stream may be missing, or may have arrived twice."""

    status = 503
    retryable = True

    def __init__(self) -> None:
        super().__init__(
            "The connection to the platform broke while a part of the answer was sent, "
            "so the answer may not be whole. Send the request again."
        )


class ShuttingDown(ServerError):
    """The worker is shutting down; another worker can answer."""

    status = 503
    retryable = True

    def __init__(self) -> None:
        super().__init__(
            "The worker that answers this request is being stopped. Send the request again."
        )


class OnOtherVolume(ServerError):
    """An object is on another network volume of the endpoint; a worker with that one can answer."""

    status = 503
    retryable = True

    def __init__(self, subject: str, volume: str, here: str, *, param: str | None = None) -> None:
        super().__init__(
            f"The {subject} is on the network volume {volume}, and this worker is on {here}. "
            "Send the request again: a worker on that volume can answer.",
            param=param,
        )


class VolumeError(ServerError):
    """Data on the network volume can't be read or written."""

    status = 507


class InternalError(ServerError):
    """A defect of the worker or of vLLM; the caller gets a request id, the log has the details."""

    def __init__(self) -> None:
        super().__init__(
            "The worker could not answer because of an internal error. "
            "The worker's log has the details, under the request's id."
        )


class RefusedByEngine(WorkerError):
    """vLLM refuses a request; message, status and parameter are vLLM's."""

    def __init__(self, message: str, *, status: int, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.status = status
        self.retryable = status in (429, 503)


@contextlib.contextmanager
def hide_defects(request_id: str) -> Iterator[None]:
    """Log any exception other than ``WorkerError``, and raise ``InternalError`` instead."""
    try:
        yield
    except WorkerError:
        raise
    # A bug, whose traceback no caller may see.
    except Exception as error:
        log.exception("request %s failed because of a defect in the worker", request_id)
        raise InternalError from error
