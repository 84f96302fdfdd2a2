"""Converts the yields of a job to an HTTP response."""

import base64
import binascii
import codecs
import json
import re
from collections.abc import Iterator
from typing import IO, Any

from llm_worker_client.mapping.errors import Dialect, Refusal
from llm_worker_client.steps import ResponseHead

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
    """Return the response for a refused request or a failed job."""
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
    """Return a yield of an event stream as server-sent events."""
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
    """Return whether the last event in ``events`` ends a stream."""
    return _LAST_EVENT.search(events) is not None


def ends_with_error(events: bytes) -> bool:
    """Return whether the last event in ``events`` is an error."""
    _, _, last_data = (b"\n" + events.removesuffix(_DONE)).rpartition(b"\ndata: ")
    try:
        data = json.loads(last_data)
    except ValueError:
        return False
    return isinstance(data, dict) and bool(data.get("error"))


def error_event(refusal: Refusal, dialect: Dialect, job_id: str | None) -> bytes:
    """Return the event that reports an error within a stream."""
    _, body = refusal.to_status_and_body(dialect)
    if dialect is Dialect.LLM_ENGINE:
        content = {"error": body["detail"]}
        error = {"status_code": refusal.status, "content": content}
        return encode_event({"request_id": job_id, "error": error})
    return encode_event(body)


def decode_file_content(output: Any) -> bytes:
    """Return the bytes in a job's yield for a file's content.

    Raises:
        Refusal: If the yield has a different format.
    """
    if isinstance(output, str):
        return output.encode(errors="surrogatepass")
    try:
        return base64.b64decode(output["content_base64"], validate=True)
    except (TypeError, KeyError, binascii.Error):
        raise Refusal(502, "The worker's answer is not the content of a file.") from None


class JsonContent:
    """LLM Engine's object with a file's content: as text, or as base64 if it is not UTF-8.

    Args:
        file_id: Id of the file.
        stored: A temporary file, since all parts must be known to decide between the two.
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
