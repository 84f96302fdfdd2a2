"""Server-sent events: a body cut into them, and how a stream that breaks ends.

An event is its text, with the blank line that ends it.
"""

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from worker.asgi import Head

DATA = "data: "
DONE = "data: [DONE]\n\n"
END = b"\n\n"
# How events begin that hold an error: those of OpenAI's older routes, and of all others.
ERRORS = ('data: {"error"', "event: error\n")
# How events begin that only announce what comes; the request may still be refused.
ANNOUNCEMENTS = (
    "event: response.created\n",
    "event: response.in_progress\n",
    "event: response.output_item.added\n",
    "event: response.content_part.added\n",
    "event: message_start\n",
    "event: content_block_start\n",
    "event: ping\n",
)
# In the event that opens a choice of a chat.
ROLE = '"delta":{"role":"assistant","content":""'
# How the event begins that ends a response, and holds all of it.
COMPLETED = "event: response.completed\n"


@dataclass(frozen=True, slots=True)
class ErrorFormat:
    """What the clients of an API take for an error.

    Args:
        last_events: makes the events that end a stream, of an error's body.
        keys: keys that stand next to ``error`` in an error's body.
    """

    last_events: Callable[[dict[str, Any]], list[str]]
    keys: Mapping[str, str] = field(default_factory=dict)


async def events_in(parts: AsyncGenerator[Head | bytes, None]) -> AsyncGenerator[str, None]:
    """Yield the events of a body; vLLM sends one a part today, but does not promise it."""
    rest = b""
    async for part in parts:
        assert isinstance(part, bytes)  # for the type checker: there is one head
        *events, rest = (rest + part).split(END)
        for event in events:
            yield (event + END).decode()
    if rest:
        yield rest.decode()


def weight(event: str) -> int:
    """Return what an event counts in a chunk: 1, or 0 if it has no part of the answer.

    A chunk of such an event alone would delay the first token until the next chunk is full.
    """
    return 0 if event.startswith(ANNOUNCEMENTS) or ROLE in event else 1


def decoded(events: list[str]) -> list[Any]:
    """Return the data of events, without the closing mark, which has none."""
    lines = [line for event in events for line in event.split("\n") if line.startswith(DATA)]
    return [json.loads(line.removeprefix(DATA)) for line in lines if line != DONE.strip()]


def error_in(event: str) -> dict[str, Any]:
    """Return the error of an event that holds one."""
    (data,) = decoded([event])
    error: dict[str, Any] = data.get("error") or data
    return error


def _event(data: dict[str, Any], name: str = "") -> str:
    return f"{name}{DATA}{json.dumps(data, ensure_ascii=False)}\n\n"


def _openai(body: dict[str, Any]) -> list[str]:
    return [_event(body), DONE]


def _responses(body: dict[str, Any]) -> list[str]:
    own = {key: body["error"][key] for key in ("code", "message", "param")}
    return [_event({"type": "error", **own, **body}, "event: error\n")]


def _anthropic(body: dict[str, Any]) -> list[str]:
    return [_event(body, "event: error\n")]


OPENAI = ErrorFormat(_openai)
RESPONSES = ErrorFormat(_responses)
ANTHROPIC = ErrorFormat(_anthropic, keys={"type": "error"})
