"""Server-sent events: splits a body into events, and makes the last events of a failed stream.

An event is represented by its text, including the blank line at its end.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from worker.json_lines import escape_line_breaks

DATA_PREFIX = "data: "
DONE_EVENT = "data: [DONE]\n\n"
EVENT_END = "\n\n"
SEPARATOR = EVENT_END.encode()
# Prefixes of events with an error: on the routes for completions and chats, and on all others.
ERROR_PREFIXES = ('data: {"error"', "event: error\n")
# Prefixes of events that only announce content. After such events, vLLM may refuse the request.
ANNOUNCEMENT_PREFIXES = (
    "event: response.created\n",
    "event: response.in_progress\n",
    "event: response.output_item.added\n",
    "event: response.content_part.added\n",
    "event: message_start\n",
    "event: content_block_start\n",
    "event: ping\n",
)
# Part of the event that starts a choice of a chat.
ROLE_DELTA = '"delta":{"role":"assistant","content":""'
# Prefixes of the event that ends a response of /v1/responses and contains all of it. Since vLLM
# 0.33, a response that reaches the limit of its tokens ends with the second one.
COMPLETED_PREFIXES = ("event: response.completed\n", "event: response.incomplete\n")
# Prefixes of events that end an answer, or contain its usage.
LAST_PREFIXES = (*ERROR_PREFIXES, *COMPLETED_PREFIXES, DONE_EVENT)


@dataclass(frozen=True, slots=True)
class ErrorFormat:
    """The format of errors that the clients of an API expect."""

    # Makes them from the body of an error.
    make_last_events: Callable[[dict[str, Any]], list[str]]
    # Keys next to ``error`` in the body of an error.
    keys: Mapping[str, str] = field(default_factory=dict)
    closing_event: str = ""  # ends every stream; empty if clients expect none

    def make_receipt_events(self, receipt: dict[str, Any] | None) -> list[str]:
        """Make the last events of a stream that ends with a receipt, if there is one."""
        # Readers of a stream of chat completions expect ``choices`` in every event.
        data: dict[str, Any] = {
            "type": "receipt",
            "object": "receipt",
            "choices": [],
            "receipt": receipt,
        }
        events = [format_event(data, "event: receipt\n")] if receipt else []
        return [*events, *filter(None, [self.closing_event])]


class EventSplitter:
    """Splits the parts of a body into events.

    vLLM sends one event in each part, but does not guarantee it. ``incomplete`` is the beginning of
    an event whose rest has not arrived.
    """

    def __init__(self) -> None:
        self.incomplete = b""

    def split_part(self, part: bytes) -> list[str]:
        """Return the events that are complete with this part, with rare line breaks as escapes."""
        *events, self.incomplete = (self.incomplete + part).split(SEPARATOR)
        return [escape_line_breaks((event + SEPARATOR).decode()) for event in events]

    def decode_inner_event(self, part: bytes) -> str | None:
        """Return a part that is one event before the last ones; None for any other part."""
        end = part.find(SEPARATOR)
        if self.incomplete or end < 0 or end != len(part) - len(SEPARATOR):
            return None
        event = escape_line_breaks(part.decode())
        return None if event.startswith(LAST_PREFIXES) else event


def has_content(event: str) -> bool:
    """Return whether an event has a part of the answer; others weigh nothing in a chunk.

    If a chunk could consist of such an event alone, the first token would wait for the next chunk.
    """
    return not event.startswith(ANNOUNCEMENT_PREFIXES) and ROLE_DELTA not in event


def decode_event_data(events: list[str]) -> list[Any]:
    """Return the decoded JSON data of events, without the event [DONE], whose data is no JSON."""
    lines = [line for event in events for line in event.split("\n") if line.startswith(DATA_PREFIX)]
    return [
        json.loads(line.removeprefix(DATA_PREFIX)) for line in lines if line != DONE_EVENT.strip()
    ]


def name_incomplete(event: str) -> str:
    """Return the last event of a response under the name that OpenAI has for its status.

    vLLM before 0.33 also calls a response complete that has reached the limit of its tokens.
    """
    completed, incomplete = COMPLETED_PREFIXES
    if not event.startswith(completed):
        return event
    (data,) = decode_event_data([event])
    if data["response"].get("status") != "incomplete":
        return event
    return format_event({**data, "type": "response.incomplete"}, incomplete)


def parse_error(event: str) -> dict[str, Any]:
    (data,) = decode_event_data([event])
    error: dict[str, Any] = data.get("error") or data
    return error


def format_event(data: Any, prefix: str = "") -> str:
    """Return an event with JSON data; ``prefix`` are the lines before the data."""
    content = escape_line_breaks(json.dumps(data, ensure_ascii=False))
    return f"{prefix}{DATA_PREFIX}{content}\n\n"


def _make_responses_error_events(body: dict[str, Any]) -> list[str]:
    details = {key: body["error"][key] for key in ("code", "message", "param")}
    return [format_event({"type": "error", **details, **body}, "event: error\n")]


OPENAI_ERRORS = ErrorFormat(lambda body: [format_event(body), DONE_EVENT], closing_event=DONE_EVENT)
RESPONSES_ERRORS = ErrorFormat(_make_responses_error_events)
ANTHROPIC_ERRORS = ErrorFormat(
    lambda body: [format_event(body, "event: error\n")], keys={"type": "error"}
)
