"""The error tree: every error has an HTTP status, and says whether a retry can help.

WorkerError
├─ RequestError          the caller can correct it
│  ├─ InvalidInput       400
│  ├─ Unauthorized       401
│  ├─ Forbidden          403
│  ├─ NoEngine           400: the worker only trains
│  ├─ UnknownRoute       404
│  ├─ NoSuchObject       404
│  ├─ WrongMethod        405
│  ├─ Conflict           409
│  ├─ InputTooLarge      413
│  └─ AnswerTooLarge     413
├─ EngineError           the caller can't correct it
│  ├─ StartFailed        503: no worker of the endpoint would start
│  │  ├─ SettingsError   all mistakes in its settings
│  │  ├─ Unavailable     a model is neither on the disk nor to be downloaded
│  │  └─ MachineUnfit    another machine may do
│  ├─ EngineBusy         503, retryable
│  │  └─ EngineAside     503, retryable in a minute: a fine-tune needs the engine's memory
│  ├─ EngineDead         503, retryable: the engine died before the answer was whole
│  ├─ KilledEngine       500: this request has probably killed the engine
│  ├─ StreamInDoubt      503, retryable: a part of the answer may be lost
│  ├─ ShuttingDown       503, retryable: this worker is being stopped
│  ├─ VolumeError        507: the network volume is missing, full or read-only
│  └─ InternalError      500
└─ RefusedByEngine       vLLM refuses the request, with its own message and status
"""

import contextlib
import logging
import re
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from worker.masking import masked

log = logging.getLogger(__name__)

# Characters: a message may quote the request, and a yield has a limit.
LONGEST_MESSAGE = 2_000


class WorkerError(Exception):
    """The error of a job. Its message is for the caller: no path, credential or prompt in it."""

    status: int = 500
    retryable = False
    # Seconds until a retry may succeed, if that takes longer than usual.
    retry_after: int | None = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    @property
    def type(self) -> str:
        """The status in words (BadRequestError), as vLLM's server and OpenAI's client spell it."""
        words = HTTPStatus(self.status).phrase.title().replace(" ", "")
        return words if words.endswith("Error") else f"{words}Error"

    def body(self, request_id: str | None = None) -> dict[str, Any]:
        """Return the error in OpenAI's shape; ``code`` is the HTTP status."""
        later = {} if self.retry_after is None else {"retry_after": self.retry_after}
        return {
            "error": {
                "message": _postable(self.message),
                "type": self.type,
                "param": self.param and _postable(self.param),
                "code": self.status,
                "retryable": self.retryable,
                **later,
                "request_id": request_id,
            }
        }


# An option of vLLM in one of its messages.
_FLAG = re.compile(r"--([a-z]+(?:-[a-z]+)+)")


def in_settings(message: str) -> str:
    """Replace vLLM's options in a message by settings: --max-model-len by MAX_MODEL_LEN."""
    return _FLAG.sub(lambda flag: flag[1].replace("-", "_").upper(), message)


def _postable(text: str) -> str:
    """Return a text that a POST can carry: cut, without secrets or halves of surrogate pairs."""
    return masked(text)[:LONGEST_MESSAGE].encode(errors="replace").decode()


class RequestError(WorkerError):
    """The caller can correct it."""


class InvalidInput(RequestError):
    """The job's input is not one of the accepted shapes, or a value in it is refused."""

    status = 400


class Unauthorized(RequestError):
    """The server has a key, and the request does not have it."""

    status = 401

    def __init__(self) -> None:
        super().__init__("The request carries no key, or a wrong one: Authorization: Bearer <key>.")


class Forbidden(RequestError):
    """The server answers this machine's programs only, and a web page may have sent the request."""

    status = 403


class NoEngine(RequestError):
    """The worker has been started to train only."""

    status = 400

    def __init__(self) -> None:
        super().__init__(
            "This worker trains adapters, and has no engine that could answer (--train): send the "
            "request to an endpoint that serves the model."
        )


class UnknownRoute(RequestError):
    """No such route, or not one that this worker serves."""

    status = 404


class NoSuchObject(RequestError):
    """No file, batch, fine-tune or adapter has this id."""

    status = 404


class Conflict(RequestError):
    """The state of an object does not allow it."""

    status = 409


class WrongMethod(RequestError):
    """The route has another method."""

    status = 405


class InputTooLarge(RequestError):
    """The job's input has more bytes than the operator allows."""

    status = 413


class AnswerTooLarge(RequestError):
    """The answer does not fit one yield and can't be split."""

    status = 413


class EngineError(WorkerError):
    """The caller can't correct it."""


class StartFailed(EngineError):
    """The worker does not start.

    ``everywhere``: every other worker of the endpoint would fail likewise, so callers are told.
    """

    status = 503
    everywhere = True


class MachineUnfit(StartFailed):
    """The worker does not start because of its machine: another worker answers the jobs."""

    everywhere = False


class EngineBusy(EngineError):
    """The worker is full, or the engine's queue; another worker may have room."""

    status = 503
    retryable = True

    def __init__(self, message: str | None = None, *, param: str | None = None) -> None:
        """Make the error; without a message it says that the worker is full."""
        full = "The worker has as many requests as it can hold. Send the request again."
        super().__init__(message or full, param=param)


class EngineAside(EngineBusy):
    """The engine has made room for a fine-tune, and is started again after it."""

    retry_after = 60

    def __init__(self) -> None:
        super().__init__(
            "The model is being fine-tuned on this worker, and answers nothing meanwhile. "
            f"Send the request again in {self.retry_after} seconds."
        )


class EngineDead(EngineError):
    """The engine is gone; another worker can answer."""

    status = 503
    retryable = True

    def __init__(self) -> None:
        super().__init__(
            "The engine that answers this request has died and is being replaced. "
            "Send the request again."
        )


class KilledEngine(EngineError):
    """The engine died of this request, as far as can be told: elsewhere it would do so, too."""

    status = 500

    def __init__(self) -> None:
        super().__init__(
            "The engine died when it began with this request, so the request is not run again."
        )


class StreamInDoubt(EngineError):
    """A part of a stream may be missing, or may have arrived twice."""

    status = 503
    retryable = True

    def __init__(self) -> None:
        super().__init__(
            "The connection to the platform broke while a part of the answer was sent, "
            "so the answer may not be whole. Send the request again."
        )


class ShuttingDown(EngineError):
    """The worker is being stopped; another one can answer."""

    status = 503
    retryable = True

    def __init__(self) -> None:
        super().__init__(
            "The worker that answers this request is being stopped. Send the request again."
        )


class VolumeError(EngineError):
    """What is kept on the network volume can't be read or written."""

    status = 507


class InternalError(EngineError):
    """A defect of the worker or of vLLM; the log has the details, the caller the request id."""

    def __init__(self) -> None:
        super().__init__(
            "The worker could not answer because of an internal error. "
            "The request id finds the details in the worker's log."
        )


class RefusedByEngine(WorkerError):
    """vLLM refuses a request; message, status and parameter are its own."""

    def __init__(self, message: str, *, status: int, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.status = status
        self.retryable = status in (429, 503)


@contextlib.contextmanager
def defects_hidden(request_id: str) -> Iterator[None]:
    """Log any other exception than a ``WorkerError``, and raise ``InternalError`` instead."""
    try:
        yield
    except WorkerError:
        raise
    except Exception as error:
        log.exception("request %s met a defect", request_id)
        raise InternalError from error
