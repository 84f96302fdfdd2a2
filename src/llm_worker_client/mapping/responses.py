"""What a job yields, as a response of HTTP."""

import base64
import binascii
import json
import re
from typing import Any

from llm_worker_client.mapping.errors import Dialect, Refusal
from llm_worker_client.steps import Head

JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
BINARY = "application/octet-stream"
_DONE = b"data: [DONE]\n\n"
# The last events of chats and completions, of Anthropic's messages, and of responses.
_LAST = re.compile(
    rb"(^|\n)(data: \[DONE\]|event: (message_stop|response\.(completed|incomplete|failed))\n"
    rb"data: [^\n]*)\n\n\Z"
)

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def head(status: int, media_type: str, job_id: str | None, **more: str) -> Head:
    named = {} if job_id is None else {"x-request-id": job_id}
    return Head(status, {"content-type": media_type, **named, **more})


def whole(output: Any, job_id: str | None) -> tuple[Head, bytes]:
    """Return the response that one yield is."""
    if isinstance(output, str):
        return head(200, TEXT, job_id), _utf8(output)
    return head(200, JSON, job_id), _utf8(_encode(output))


def refused(refusal: Refusal, dialect: Dialect, job_id: str | None = None) -> tuple[Head, bytes]:
    """Return the response for a request that is refused, or whose job has failed."""
    status, body = refusal.in_dialect(dialect)
    again = {}
    if refusal.retry_after_s is not None:
        again = {"retry-after": f"{refusal.retry_after_s:g}"}
    return head(status, JSON, job_id, **again), _utf8(_encode(body))


def is_events(output: Any) -> bool:
    """Return whether a yield is of a stream of events: text of them, or their decoded data."""
    return isinstance(output, list) or (
        isinstance(output, str) and output.startswith(("data:", "event:"))
    )


def events(output: Any) -> bytes:
    """Return a yield of a stream as server-sent events."""
    if isinstance(output, str):
        return _utf8(output)
    decoded = output if isinstance(output, list) else [output]
    return b"".join(map(event, decoded))


def event(data: Any) -> bytes:
    """Return an event; its name is what its data says of its type, as in Anthropic's."""
    name = data.get("type") if isinstance(data, dict) else None
    named = f"event: {name}\n" if isinstance(name, str) else ""
    return _utf8(f"{named}data: {_encode(data)}\n\n")


def is_last(sent: bytes) -> bool:
    """Return whether no event follows these."""
    return _LAST.search(sent) is not None


def has_error(sent: bytes) -> bool:
    """Return whether the last of some events is an error."""
    _, _, last = (b"\n" + sent.removesuffix(_DONE)).rpartition(b"\ndata: ")
    try:
        data = json.loads(last)
    except ValueError:
        return False
    return isinstance(data, dict) and bool(data.get("error"))


def broken_off(refusal: Refusal, dialect: Dialect, job_id: str | None) -> bytes:
    """Return the event that says in a stream how its job failed."""
    _, body = refusal.in_dialect(dialect)
    if dialect is Dialect.LLM_ENGINE:
        content = {"error": body["detail"]}
        error = {"status_code": refusal.status, "content": content}
        return event({"request_id": job_id, "error": error})
    return event(body)


def content(output: Any) -> bytes:
    """Return the bytes that a yield of a file's content holds.

    Raises:
        Refusal: it is no such yield.
    """
    if isinstance(output, str):
        return output.encode(errors="surrogatepass")
    try:
        return base64.b64decode(output["content_base64"], validate=True)
    except (TypeError, KeyError, binascii.Error):
        raise Refusal(502, "The worker's answer is no content of a file.") from None


def _utf8(text: str) -> bytes:
    # JSON can hold half a surrogate pair, which UTF-8 can't encode.
    return text.encode(errors="replace")
