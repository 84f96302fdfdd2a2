"""Converts the yields of a job to an HTTP response, and errors to the format of each client."""

import base64
import binascii
import codecs
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum, auto
from http import HTTPStatus
from typing import IO, Any

from llm_worker_client.steps import ResponseHead

CLIENT_CLOSED_REQUEST = 499
# Status of the platform's gateway when it gives up: the job may run, and a retry would be another.
GATEWAY_GAVE_UP = 524
# Statuses below 500 for which LLM Engine's client has an exception.
_LLM_ENGINE_STATUSES = (400, 401, 404, 429)
JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
BINARY = "application/octet-stream"
# Bytes of a file's content that are encoded at a time: a multiple of 3, so that the base64 of all
# blocks is the base64 of the content.
_BLOCK_BYTES = 3 * 2**16
_DONE = b"data: [DONE]\n\n"
# Last event of a stream: of chats and completions, Anthropic's messages or OpenAI's responses.
_LAST_EVENT = re.compile(
    rb"(^|\n)(data: \[DONE\]|event: (message_stop|response\.(completed|incomplete|failed))\n"
    rb"data: [^\n]*)\n\n\Z"
)

# Characters that JSON allows in strings, and at which some readers end a line.
_LINE_BREAKS = str.maketrans({char: f"\\u{ord(char):04x}" for char in "\x85\u2028\u2029"})

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Dialect(StrEnum):
    """The API that a client uses, which determines the format of the responses."""

    OPENAI = auto()
    ANTHROPIC = auto()
    LLM_ENGINE = auto()


class Refusal(Exception):
    """The error with which a request is answered.

    ``error`` is the worker's error object, if it has sent one. ``retry_after_s`` is None if a retry
    can't succeed.
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
        self.error = error or _make_error_object(status, message)
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


def _make_error_object(status: int, message: str) -> dict[str, Any]:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    kind = phrase.title().replace(" ", "").replace("-", "").removesuffix("Error") + "Error"
    return {"message": message, "type": kind, "param": None, "code": status}


def refusal_from_report(report: dict[str, Any]) -> Refusal:
    """Return the error of a job that has ended with a status other than ``COMPLETED``."""
    id, status, error = report.get("id"), report.get("status"), report.get("error")
    if status == "CANCELLED":
        return Refusal(CLIENT_CLOSED_REQUEST, f"The job {id} was cancelled.")
    if status == "TIMED_OUT":
        return Refusal(504, f"The job {id} ran out of time: {error or 'its time limit is over'}.")
    body = error
    if isinstance(error, str):
        # The platform forwards the worker's error object as a JSON string.
        with suppress(ValueError):
            body = json.loads(error)
    error_object = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error_object, dict):
        return Refusal(500, str(error or "The job failed without an error."))
    code = error_object.get("code")
    http_status = code if isinstance(code, int) and 400 <= code <= 599 else 500
    retry_after = error_object.get("retry_after", 1) if error_object.get("retryable") else None
    return Refusal(http_status, str(error_object.get("message")), error_object, retry_after)


def create_head(status: int, media_type: str, job_id: str | None, **extra: str) -> ResponseHead:
    request_id = {} if job_id is None else {"x-request-id": job_id}
    return ResponseHead(status, {"content-type": media_type, **request_id, **extra})


def whole_response(output: Any, job_id: str | None) -> tuple[ResponseHead, bytes]:
    """Return the response for a job with a single yield."""
    if isinstance(output, str):
        return create_head(200, TEXT, job_id), _encode_utf8(output)
    return create_head(200, JSON, job_id), _encode_utf8(_encode(output))


def error_response(
    refusal: Refusal, dialect: Dialect, job_id: str | None = None
) -> tuple[ResponseHead, bytes]:
    status, body = refusal.to_status_and_body(dialect)
    headers = {}
    if refusal.retry_after_s is not None:
        headers["retry-after"] = f"{refusal.retry_after_s:g}"
    else:
        # OpenAI's client would otherwise retry after 408, 409, 429 and all statuses from 500.
        headers["x-should-retry"] = "false"
    return create_head(status, JSON, job_id, **headers), _encode_utf8(_encode(body))


def is_events(output: Any) -> bool:
    """Return whether a yield is a string of server-sent events, or a list of their data."""
    return isinstance(output, list) or (
        isinstance(output, str) and output.startswith(("data:", "event:"))
    )


def encode_events(output: Any) -> bytes:
    if isinstance(output, str):
        return _encode_utf8(output)
    event_data = output if isinstance(output, list) else [output]
    return b"".join(map(encode_event, event_data))


def encode_event(data: Any) -> bytes:
    """Return one event, named after the ``type`` in its data, as in Anthropic's API."""
    name = data.get("type") if isinstance(data, dict) else None
    name_line = f"event: {name}\n" if isinstance(name, str) else ""
    return _encode_utf8(f"{name_line}data: {_encode(data).translate(_LINE_BREAKS)}\n\n")


def is_end_of_stream(events: bytes) -> bool:
    return _LAST_EVENT.search(events) is not None


def ends_with_error(events: bytes) -> bool:
    _, _, last_data = (b"\n" + events.removesuffix(_DONE)).rpartition(b"\ndata: ")
    try:
        data = json.loads(last_data)
    except ValueError:
        return False
    return isinstance(data, dict) and bool(data.get("error"))


def error_event(refusal: Refusal, dialect: Dialect, job_id: str | None) -> bytes:
    _, body = refusal.to_status_and_body(dialect)
    if dialect is Dialect.LLM_ENGINE:
        content = {"error": body["detail"]}
        error = {"status_code": refusal.status, "content": content}
        return encode_event({"request_id": job_id, "error": error})
    return encode_event(body)


def decode_file_content(output: Any) -> bytes:
    if isinstance(output, str):
        return output.encode(errors="surrogatepass")
    try:
        return base64.b64decode(output["content_base64"], validate=True)
    except (TypeError, KeyError, binascii.Error):
        raise Refusal(502, "The worker's answer is not the content of a file.") from None


class JsonContent:
    """LLM Engine's object with a file's content: as text, or as base64 if it is not UTF-8.

    ``stored`` is a temporary file, since all parts must be known to decide between the two.
    """

    def __init__(self, file_id: str, stored: IO[bytes]) -> None:
        self._file_id = file_id
        self._stored = stored
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._is_text = True

    def store(self, part: bytes) -> None:
        """Append a part of the content; raise ``Refusal`` if the disk is full."""
        try:
            self._stored.write(part)
        except OSError as error:
            message = f"The file can't be stored on this machine: {error.strerror or error}"
            raise Refusal(507, message) from None
        self._is_text = self._is_text and self._can_decode(part)

    def body_parts(self) -> Iterator[bytes]:
        """Yield the parts of the object, once the whole content is stored."""
        is_text = self._is_text and self._can_decode(b"", final=True)
        decoder = codecs.getincrementaldecoder("utf-8")()
        yield f'{{"id":{_encode(self._file_id)},"content":"'.encode()
        self._stored.seek(0)
        while block := self._stored.read(_BLOCK_BYTES):
            if is_text:
                yield _encode(decoder.decode(block))[1:-1].encode()
            else:
                yield base64.b64encode(block)
        yield b'"}'

    def _can_decode(self, part: bytes, *, final: bool = False) -> bool:
        try:
            self._decoder.decode(part, final)
        except UnicodeDecodeError:
            return False
        return True


def _encode_utf8(text: str) -> bytes:
    # JSON strings may contain half of a surrogate pair, which UTF-8 can't encode.
    return text.encode(errors="replace")
