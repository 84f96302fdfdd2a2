"""Long sessions of coding agents, made from their recorded first bodies.

Each request has the whole conversation so far, as the agents send it. A few calls have names and
arguments that models invent.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Any

from support.traffic.extended import MESSAGES, RESPONSES, Form
from support.traffic.store import Request, read_recorded

TURNS, ITEMS, TOOLS = 300, 1_200, 260
# Text of a result, such as a part of a file.
RESULT = "A line of a file.\n" * 60
PLAIN_CALLS = (("Read", '{"file_path": "a.txt"}'),)
CALLS = (
    *PLAIN_CALLS * 17,
    ("get weather", "{}"),
    ("create_event<|channel|>analysis", '{"a": 1}'),
    ("Bash", '{"command": "true", "timeout": 100000000000000000000000}'),
)


Calls = Sequence[tuple[str, str]]


def claude_code_session(
    turns: int = TURNS, tools: int = TOOLS, calls: Calls = CALLS
) -> Iterator[Request]:
    """Yield the requests of a session, whose turns have these calls again and again."""
    body = read_recorded()["claude-code"][0].body
    schema = {
        "type": "object",
        "properties": {f"field_{n}": {"type": "string", "description": "A."} for n in range(8)},
        "required": ["field_0"],
    }
    missing = range(tools - len(body["tools"]))
    more = [MESSAGES.tool(f"mcp__server__tool_number_{number}", schema) for number in missing]
    yield from _session(MESSAGES, {**body, "tools": [*body["tools"], *more]}, turns, calls)


def codex_session(items: int = ITEMS, calls: Calls = CALLS) -> Iterator[Request]:
    """Yield the requests of a session that has ``items`` items at its end."""
    body = read_recorded()["codex"][0].body
    yield from _session(RESPONSES, body, (items - len(body["input"])) // 2, calls)


def _session(form: Form, body: dict[str, Any], turns: int, calls: Calls) -> Iterator[Request]:
    history = list(body[form.history])
    for number, (name, arguments) in zip(range(turns), cycle(calls), strict=False):
        call_id = f"call-{number}"
        history += [form.call(call_id, name, arguments), form.result(call_id, RESULT)]
        # A copy, since the list grows; every other request is a stream.
        yield Request(form.path, {**body, form.history: [*history], "stream": number % 2 == 0})


SESSIONS: dict[str, Callable[[], Iterator[Request]]] = {
    "claude-code": claude_code_session,
    "codex": codex_session,
}
