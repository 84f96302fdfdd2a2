"""Variants of recorded bodies, with contents that models and clients write more rarely.

Each variant adds one thing to the first body of a client, in the format of its route.

The sessions are long ones of coding agents: each request has the whole conversation so far, as the
agents send it. A few calls have names and arguments that models invent.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from support.traffic.store import Request, read_recorded

Json = dict[str, Any]
# Names that models invented, and long ones of servers with many tools.
NAMES = {
    "a space in a name": "get weather",
    "a marker in a name": "create_event<|channel|>analysis",
    "a name of 74 characters": "mcp__" + "0b2c4d6e-" * 4 + "__slack_search_public_and_private",
    "a name of 128 characters": "n" * 128,
    "a name of 300 characters": "n" * 300,
    "an empty name": "",
    "a name in another script": "über·天気",
    "a name with a dot and a slash": "files.read/v2",
}
ARGUMENTS = {
    "cut arguments": '{"job_id": "4',
    "empty arguments": "",
    "null as arguments": "null",
    "a list as arguments": "[]",
    "a number as arguments": "42",
    "a large integer": '{"wei": 100000000000000000000000}',
    "a large negative integer": '{"wei": -100000000000000000000000}',
    "a number without a value": '{"wei": NaN}',
    "a large number": '{"wei": 1e400}',
    "deep arguments": '{"a": ' * 30 + "1" + "}" * 30,
    "a long key": json.dumps({"k" * 600: 1}),
    "half an emoji in arguments": '{"text": "\\ud83d"}',
    "many arguments": json.dumps({f"key_{index}": index for index in range(2_000)}),
}
TEXTS = {
    "half an emoji": "\ud83d",
    "separators of lines": "a\u2028b\u2029c\u0085d",
    "control characters": "\x00\x07\x1b[0m",
    "markers of the template": "<|im_end|>\n<|im_start|>system\n",
    "an empty text": "",
    "a long word": "a" * 20_000,
}
SCHEMAS: dict[str, Any] = {
    "a large maxLength": {"type": "string", "maxLength": 10_485_760},
    "a large maxItems": {"type": "array", "items": {"type": "integer"}, "maxItems": 1_000_000},
    "an enum of 1,500 values": {"type": "string", "enum": [f"value-{n}" for n in range(1_500)]},
    "a long enum": {"type": "string", "enum": ["v" * 30_000]},
    "a pattern with a lookahead": {"type": "string", "pattern": "^(?!.*secret)[a-z]{1,500}$"},
    "a pattern of nested counts": {"type": "string", "pattern": "^((a{0,50}){0,50}){0,50}$"},
    "an invalid pattern": {"type": "string", "pattern": "("},
    "a reference": {"$ref": "#/$defs/node"},
    "a reference to another address": {"$ref": "https://json-schema.org/draft/2020-12/schema"},
    "large numbers": {"type": "integer", "maximum": 10**30, "minimum": -(10**30)},
    "an unknown type": {"type": "money", "format": "money"},
    "types": {"type": ["string", "null"], "default": None},
    "alternatives": {"anyOf": [{"type": "string", "minLength": n} for n in range(300)]},
    "a long description": {"type": "string", "description": "word " * 6_000},
    "a boolean schema": True,
}
for depth, name in ((40, "deep objects"), (120, "very deep objects")):
    SCHEMAS[name] = {"type": "object"}
    for _ in range(depth):
        SCHEMAS[name] = {"type": "object", "properties": {"a": SCHEMAS[name]}}
DEFINITIONS = {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}}
PROPERTIES: dict[str, Json] = {
    "no properties": {},
    "many properties": {f"property_{n}": {"type": "string"} for n in range(1_200)},
    "a long name of a property": {"p" * 300: {"type": "string"}},
    "a name of a property with spaces": {"the job's id": {"type": "string"}},
}


@dataclass(frozen=True)
class Form:
    """The format of a route's conversations.

    Args:
        path: Path of the route.
        history: Key of the list of messages or items.
        text: Makes a message from a role and its text.
        call: Makes the messages of a tool's call, from its id, name and arguments.
        result: Makes the message with a call's result, from the call's id and the content.
        tool: Makes a tool from its name and the schema of its arguments.
        answers: Further messages that only this route has, by name.
        keys: Further keys of a body, by name.
    """

    path: str
    history: str
    text: Callable[[str, Any], Json]
    call: Callable[[str, str, str], Json]
    result: Callable[[str, Any], Json]
    tool: Callable[[str, Any], Json]
    answers: dict[str, list[Json]]
    keys: dict[str, Json]


def _text(role: str, content: Any) -> Json:
    return {"role": role, "content": content}


def _function(name: str, schema: Any) -> Json:
    return {"name": name, "description": "A tool.", "parameters": schema}


def _chat_call(call_id: str, name: str, arguments: Any) -> Json:
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _messages_call(call_id: str, name: str, arguments: str) -> Json:
    try:
        value = json.loads(arguments)
    except ValueError:
        # As Claude Code does.
        value = {"__unparsedToolInput": {"raw": arguments}}
    block = {"type": "tool_use", "id": call_id, "name": name, "input": value}
    return {"role": "assistant", "content": [block]}


def _responses_call(call_id: str, name: str, arguments: str) -> Json:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


_NULLS = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "tool_calls", "name"))
_OPENAI_KEYS = {
    "store": False,
    "metadata": {"a": "b"},
    "user": "user-1",
    "service_tier": "auto",
    "prompt_cache_key": "a",
    "safety_identifier": "b",
}
_PART = {"type": "text", "text": "A text."}
_OUTPUT = {"type": "output_text", "text": "A text."}
CHAT = Form(
    "/v1/chat/completions",
    "messages",
    _text,
    _chat_call,
    lambda call_id, content: {"role": "tool", "tool_call_id": call_id, "content": content},
    lambda name, schema: {"type": "function", "function": _function(name, schema)},
    answers={
        "null keys": [{**_NULLS, "role": "assistant", "content": "A text.", "reasoning": None}],
        "reasoning_content": [{**_text("assistant", "A text."), "reasoning_content": "A reason."}],
        "reasoning": [{**_text("assistant", "A text."), "reasoning": "A reason."}],
        "content is null": [_text("assistant", None)],
        "no content": [{"role": "assistant"}],
        "content is an empty list": [_text("assistant", [])],
        "a list of no calls": [{**_text("assistant", "A text."), "tool_calls": []}],
        "a refusal": [_text("assistant", [{"type": "refusal", "refusal": "No."}])],
        "arguments are an object": [
            _chat_call("call-1", "job_status", {"job_id": "42"}),
            {"role": "tool", "tool_call_id": "call-1", "content": "Done."},
        ],
        "a call without a result": [_chat_call("call-1", "job_status", "{}")],
        "a result without a call": [{"role": "tool", "tool_call_id": "call-9", "content": "Done."}],
        "a result without an id": [{"role": "tool", "name": "job_status", "content": "Done."}],
        "a result of parts": [{"role": "tool", "tool_call_id": "call-9", "content": [_PART]}],
        "an older call": [
            {**_text("assistant", None), "function_call": {"name": "a", "arguments": "{}"}},
            {"role": "function", "name": "a", "content": "Done."},
        ],
        "a call of a custom tool": [
            {
                **_text("assistant", None),
                "tool_calls": [
                    {"id": "call-1", "type": "custom", "custom": {"name": "a", "input": "b"}}
                ],
            }
        ],
        "a developer": [_text("developer", "Be brief.")],
        "an unknown role": [_text("ipython", "Done.")],
        "names of people": [{**_text("user", "Hi"), "name": "Zoë of Rio"}],
        "a part with a cache": [_text("user", [{**_PART, "cache_control": {"type": "ephemeral"}}])],
        "an answer without text, with all keys": [
            _text("user", "Hi"),
            {"role": "assistant", "content": None, "function_call": None, "tool_calls": None},
            _text("user", None),
        ],
        "a thinking part": [_text("assistant", [{"type": "thinking", "thinking": "A reason."}])],
        "unknown keys of a message": [{**_text("user", "Hi"), "id": 1, "created_at": None}],
    },
    keys={
        "keys of OpenAI": {
            **_OPENAI_KEYS,
            "verbosity": "low",
            "modalities": ["text"],
            "parallel_tool_calls": False,
            "reasoning_effort": "low",
        },
        "null keys of a body": dict.fromkeys(
            ("stop", "seed", "user", "response_format", "logprobs", "top_logprobs", "metadata")
        ),
        "a tool is required": {"tool_choice": "required"},
        "a tool is named": {
            "tool_choice": {"type": "function", "function": {"name": "job_status"}}
        },
        "no tool is allowed": {"tool_choice": "none"},
        "tools are null": {"tools": None, "tool_choice": None},
        "no tools": {"tools": []},
        "an object": {"response_format": {"type": "json_object"}},
        "web search": {"web_search_options": {}},
        "a prediction": {"prediction": {"type": "content", "content": "A text."}},
        "extra keys of others": {"provider": {"order": ["a"]}, "transforms": [], "top_a": 0},
    },
)
MESSAGES = Form(
    "/v1/messages",
    "messages",
    _text,
    _messages_call,
    lambda call_id, content: _text(
        "user", [{"type": "tool_result", "tool_use_id": call_id, "content": content}]
    ),
    lambda name, schema: {"name": name, "description": "A tool.", "input_schema": schema},
    answers={
        "thinking": [
            _text("assistant", [{"type": "thinking", "thinking": "A reason.", "signature": ""}])
        ],
        "redacted thinking": [_text("assistant", [{"type": "redacted_thinking", "data": "AA=="}])],
        "empty content": [_text("assistant", "")],
        "no blocks": [_text("assistant", [])],
        "an empty block": [_text("assistant", [{"type": "text", "text": ""}])],
        "a system message": [_text("system", "Be brief.")],
        "a search result": [
            _text(
                "user",
                [{"type": "search_result", "source": "a", "title": "b", "content": [_PART]}],
            )
        ],
        "a document": [
            _text(
                "user",
                [
                    {
                        "type": "document",
                        "source": {"type": "text", "media_type": "text/plain", "data": "A text."},
                    }
                ],
            )
        ],
        "a tool of the server": [
            _text(
                "assistant",
                [{"type": "server_tool_use", "id": "srv-1", "name": "web_search", "input": {}}],
            )
        ],
        "citations": [_text("assistant", [{**_PART, "citations": None}])],
        "a call without a result": [_messages_call("call-1", "job_status", "{}")],
        "a failed call": [
            _messages_call("call-1", "job_status", "{}"),
            _text("user", [{"type": "tool_result", "tool_use_id": "call-1", "is_error": True}]),
        ],
    },
    keys={
        "keys of Anthropic": {
            "metadata": {"user_id": "user-1"},
            "service_tier": "auto",
            "container": None,
            "mcp_servers": [],
            "context_management": {"edits": []},
            "inference_geo": None,
        },
        "adaptive thinking": {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}},
        "disabled thinking": {"thinking": {"type": "disabled"}},
        "a tool is required": {"tool_choice": {"type": "any"}},
        "a tool is named": {"tool_choice": {"type": "tool", "name": "job_status"}},
        "no tool is allowed": {"tool_choice": {"type": "none"}},
        "one tool at a time": {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        "stop sequences": {"stop_sequences": ["a", "b", "c", "d", "e"]},
        "a system of blocks": {"system": [{**_PART, "cache_control": {"type": "ephemeral"}}] * 3},
    },
)
RESPONSES = Form(
    "/v1/responses",
    "input",
    _text,
    _responses_call,
    lambda call_id, content: {
        "type": "function_call_output",
        "call_id": call_id,
        "output": content,
    },
    lambda name, schema: {"type": "function", "strict": False, **_function(name, schema)},
    answers={
        "reasoning": [
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [{"type": "summary_text", "text": "A reason."}],
                "content": [{"type": "reasoning_text", "text": "A reason."}],
                "encrypted_content": None,
            }
        ],
        "encrypted reasoning": [
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "AA=="}
        ],
        "an answer with null keys": [
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "phase": None,
                "content": [{**_OUTPUT, "annotations": [], "logprobs": None}],
            }
        ],
        "an incomplete answer": [
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "in_progress",
                "content": [],
            }
        ],
        "an answer as a simple message": [_text("assistant", "A text.")],
        "an answer of output parts": [_text("assistant", [_OUTPUT])],
        "a refusal": [_text("assistant", [{"type": "refusal", "refusal": "No."}])],
        "a call without a result": [_responses_call("call-1", "job_status", "{}")],
        "a result without a call": [
            {"type": "function_call_output", "call_id": "call-9", "output": "Done."}
        ],
        "a result of parts": [
            {
                "type": "function_call_output",
                "call_id": "call-9",
                "output": [{"type": "input_text", "text": "Done."}],
            }
        ],
        "a call of a custom tool": [
            {"type": "custom_tool_call", "call_id": "call-1", "name": "apply_patch", "input": "a"},
            {"type": "custom_tool_call_output", "call_id": "call-1", "output": "Done."},
        ],
        "a call of the shell": [
            {
                "type": "local_shell_call",
                "id": "ls_1",
                "call_id": "call-1",
                "status": "completed",
                "action": {"type": "exec", "command": ["ls"], "env": {}},
            }
        ],
        "a search of the web": [
            {
                "type": "web_search_call",
                "id": "ws_1",
                "status": "completed",
                "action": {"type": "search", "query": "a"},
            }
        ],
        "a developer": [_text("developer", [{"type": "input_text", "text": "Be brief."}])],
        "a compaction": [{"type": "compaction", "id": "c_1", "encrypted_content": "AA=="}],
        "a reference to an item": [{"type": "item_reference", "id": "msg_1"}],
    },
    keys={
        "keys of OpenAI": {
            **_OPENAI_KEYS,
            "truncation": "auto",
            "parallel_tool_calls": False,
            "include": ["reasoning.encrypted_content"],
            "text": {"verbosity": "low"},
            "reasoning": {"effort": "low", "summary": "auto"},
        },
        "a tool is required": {"tool_choice": "required"},
        "a tool is named": {"tool_choice": {"type": "function", "name": "job_status"}},
        "no tool is allowed": {"tool_choice": "none"},
        "null keys of a body": dict.fromkeys(("instructions", "metadata", "text", "reasoning")),
        "a text": {"input": "Is job 42 done?"},
    },
)
FORMS = {form.path: form for form in (CHAT, MESSAGES, RESPONSES)}
TOOLS = 260
# The clients whose first bodies are varied, by route.
BASES = {
    CHAT.path: ("openai-3", "ai-sdk"),
    MESSAGES.path: ("anthropic", "claude-code"),
    RESPONSES.path: ("openai-3", "codex"),
}
# Raw jobs have messages and tools like those of chat completions.
RAW_PATH = "/local/run"


def read_extended(*, bases: int = 2) -> Iterator[tuple[str, Request]]:
    """Yield the variants of recorded bodies, with their names.

    ``bases`` is the number of clients of each route whose bodies are varied.
    """
    recorded = read_recorded()
    for path, clients in BASES.items():
        for client in clients[:bases]:
            base = next(one for one in recorded[client] if one.path.startswith(path))
            for name, body in extend(FORMS[path], base.body):
                yield f"{client} {path}: {name}", Request(base.path, body)

    body = {key: recorded["openai-3"][0].body[key] for key in ("messages", "tools")}
    for name, variant in extend(CHAT, body, with_keys=False):
        job = {**variant, "sampling_params": {"max_tokens": 1}}
        yield f"{RAW_PATH}: {name}", Request(RAW_PATH, {"input": job})


def extend(form: Form, body: Json, *, with_keys: bool = True) -> Iterator[tuple[str, Json]]:
    """Yield variants of a body, with their names."""
    for name, items in _histories(form):
        yield name, {**body, form.history: [*body[form.history], *items]}
    for name, tools in _tools(form):
        # The tools of a session stay the same.
        yield name, {**body, "tools": [*body["tools"], *tools]}
    job_status = form.tool("job_status", {"type": "object", "properties": {}})
    for name, keys in form.keys.items() if with_keys else ():
        yield name, {**body, "tools": [job_status], **keys}
    turns = 600
    history = list(body[form.history])
    for number in range(turns):
        history += _exchange(form, number, "job_status", '{"job_id": "42"}')
    yield f"{turns} turns", {**body, form.history: history}


def _exchange(form: Form, number: int, name: str, arguments: str) -> list[Json]:
    return [form.call(f"call-{number}", name, arguments), form.result(f"call-{number}", "Done.")]


def _histories(form: Form) -> Iterator[tuple[str, list[Json]]]:
    last = form.text("user", "Go on.")
    for what, name in NAMES.items():
        yield f"{what} of a call", [*_exchange(form, 1, name, "{}"), last]
    for what, arguments in ARGUMENTS.items():
        yield what, [*_exchange(form, 1, "job_status", arguments), last]
    for what, text in TEXTS.items():
        yield f"{what} of a user", [form.text("user", text), last]
        yield f"{what} of an answer", [form.text("assistant", text), last]
        yield (
            f"{what} of a result",
            [form.call("call-1", "job_status", "{}"), form.result("call-1", text)],
        )
    for what, items in form.answers.items():
        yield what, [*items, last]
    yield "the last message is an answer", [form.text("assistant", "It is")]


def _tools(form: Form) -> Iterator[tuple[str, list[Json]]]:
    for what, name in NAMES.items():
        yield f"{what} of a tool", [form.tool(name, {"type": "object", "properties": {}})]
    schema: Any = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    yield f"{TOOLS} tools", [form.tool(f"mcp__server__tool_{n}", schema) for n in range(TOOLS)]
    for what, schema in SCHEMAS.items():
        whole = {"type": "object", "properties": {"a": schema}, "$defs": DEFINITIONS}
        yield what, [form.tool("make", whole)]
    for what, properties in PROPERTIES.items():
        yield what, [form.tool("make", {"type": "object", "properties": properties})]
    yield "a tool without a schema", [form.tool("make", {})]
    tool = form.tool("make", {"type": "object", "properties": {}})
    holder = tool.get("function", tool)
    del holder["description"]
    yield "a tool without a description", [tool]


TURNS, ITEMS = 300, 1_200
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
