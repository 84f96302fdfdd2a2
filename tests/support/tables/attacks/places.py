"""Where a request carries what is hostile: by what that is, then by the name of the place."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from support.tables.attacks.row import CANARY, Http

Body = dict[str, Any]
Place = Callable[[Any], Any]

HELLO = [{"role": "user", "content": "Hi"}]
FEW = {"max_tokens": 4}
# Tokens that must be generated: each takes the matcher longer than the one before.
TOKENS = 18
LONG = {"min_tokens": TOKENS, "max_tokens": TOKENS}
TEMPLATE = {"prompt": f"{{% for m in messages %}}{CANARY}{{% endfor %}}", "echo": True}
BATCH = {"model_config": {"model": "demo"}, "output_data_path": f"out/{CANARY}.json"}

# Inputs of jobs with a shape of their own, and routes with their bodies.
INPUTS: dict[str, Body] = {
    "raw": {"prompt": "Hi", "sampling_params": FEW},
    "conversation": {"messages": HELLO, "sampling_params": FEW},
    "llm_engine": {"format": "llm_engine", "prompt": "Hi", "max_new_tokens": 4},
}
ROUTES: dict[str, tuple[str, Body]] = {
    "chat": ("/v1/chat/completions", {"messages": HELLO, **FEW}),
    "completions": ("/v1/completions", {"prompt": "Hi", **FEW}),
    "responses": ("/v1/responses", {"input": "Hi", "max_output_tokens": 4}),
    "messages": ("/v1/messages", {"messages": HELLO, **FEW}),
    "count_tokens": ("/v1/messages/count_tokens", {"messages": HELLO}),
    "tokenize": ("/tokenize", {}),
    "detokenize": ("/detokenize", {}),
    "unload": ("/v1/unload_lora_adapter", {}),
    "fine-tune": ("/v1/fine_tuning/jobs", {}),
    "file": ("/v1/files", {}),
    "batch": ("/v2/batch-completions", BATCH),
    "batch v1": ("/v1/llm/batch-completions", BATCH),
}


def put(place: str, body: Body) -> Body:
    """Return a job's input with some keys; ``content`` is a conversation of one message."""
    if place == "params":
        return put("raw", {"sampling_params": FEW | body})
    if "content" in body and place != "batch":
        said = [{"role": "user", "content": body["content"]}]
        body = {key: value for key, value in body.items() if key != "content"}
        body["input" if place == "responses" else "messages"] = said
    if place in INPUTS:
        return INPUTS[place] | body
    path, usual = ROUTES[place]
    return {"route": path, "method": "POST", "body": usual | body}


def at(place: str, **shape: Any) -> Place:
    """Return a place within keys: ``...`` stands for the value."""
    return lambda value: put(place, _filled(shape, value))


def _filled(shape: Any, value: Any) -> Any:
    if shape is ...:
        return value
    if isinstance(shape, dict):
        return {key: _filled(inner, value) for key, inner in shape.items()}
    return [_filled(inner, value) for inner in shape] if isinstance(shape, list) else shape


def _sent(request: Body) -> Http:
    """Return a request for the HTTP server; its body is bytes, JSON as a text, or what it says."""
    body = request.get("body", b"")
    if not isinstance(body, bytes):
        body = (body if isinstance(body, str) else json.dumps(body)).encode()
    return Http(**{**request, "body": body})


def _function(**keys: Any) -> Body:
    return {"type": "function", "function": {"name": "f", "parameters": ..., **keys}}


AS_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": ...}}
FLAT = {"type": "json_schema", "name": "x", "schema": ...}
TAGGED = {
    "type": "structural_tag",
    "structures": [{"begin": "<a>", "schema": ..., "end": "</a>"}],
    "triggers": ["<a>"],
}
NAMED = {"type": "function", "function": {"name": ...}}
NAMED_TOOL = {
    "tools": [{"type": "function", "function": {"name": ..., "parameters": {}}}],
    "tool_choice": NAMED,
}

PLACES: dict[str, dict[str, Place]] = {
    "body": {
        **{name: partial(put, name) for name in ("params", *INPUTS, *ROUTES)},
        "job": lambda job: job,
        "json": str.encode,
    },
    # A sampling parameter as its JSON.
    "literal": {
        "json": lambda text: (
            b'{"prompt": "Hi", "sampling_params": {"max_tokens": 4, %s}}' % text.encode()
        )
    },
    "regex": {
        "raw": at("params", guided_regex=..., **LONG),
        "raw structured_outputs": at("params", structured_outputs={"regex": ...}, **LONG),
        "raw guided_decoding": at("params", guided_decoding={"regex": ...}, **LONG),
        "beside sampling_params": at("raw", guided_regex=..., sampling_params=LONG),
        "list": lambda regex: {
            "prompts": ["a", "b"],
            "sampling_params": [LONG, {"guided_regex": regex, **LONG}],
        },
        "llm_engine": at("llm_engine", guided_regex=..., max_new_tokens=TOKENS),
        "chat": at("chat", guided_regex=..., **LONG),
        "chat structured_outputs": at("chat", structured_outputs={"regex": ...}, **LONG),
        "chat stream": at("chat", structured_outputs={"regex": ...}, stream=True, **LONG),
        "completions": at("completions", structured_outputs={"regex": ...}, **LONG),
        "responses": at("responses", structured_outputs={"regex": ...}, max_output_tokens=TOKENS),
        "pattern in response_format": lambda regex: put(
            "chat",
            {"response_format": _filled(AS_SCHEMA, {"type": "string", "pattern": regex}), **LONG},
        ),
    },
    "grammar": {
        "raw": at("params", guided_grammar=..., **LONG),
        "beside sampling_params": at("raw", guided_grammar=..., sampling_params=LONG),
        "llm_engine": at("llm_engine", guided_grammar=..., max_new_tokens=TOKENS),
        "chat": at("chat", structured_outputs={"grammar": ...}, **LONG),
        "completions": at("completions", structured_outputs={"grammar": ...}, **LONG),
        "responses": at("responses", structured_outputs={"grammar": ...}),
    },
    "schema": {
        "raw": at("params", guided_json=..., **LONG),
        "raw structured_outputs": at("params", structured_outputs={"json": ...}, **LONG),
        "llm_engine": at("llm_engine", guided_json=...),
        "chat response_format": at("chat", response_format=AS_SCHEMA, **LONG),
        "completions response_format": at("completions", response_format=AS_SCHEMA),
        "chat structured_outputs": at("chat", structured_outputs={"json": ...}),
        "chat structural_tag": at("chat", response_format=TAGGED),
        "chat tool": at("chat", tools=[_function()], tool_choice="required"),
        "chat strict tool": at(
            "chat",
            tools=[_function(strict=True)],
            tool_choice={"type": "function", "function": {"name": "f"}},
        ),
        "responses text.format": at("responses", text={"format": FLAT}),
        "responses structured_outputs": at("responses", structured_outputs={"json": ...}),
        "responses tool": at(
            "responses",
            tools=[{"type": "function", "name": "f", "parameters": ..., "strict": True}],
            tool_choice="required",
        ),
        "messages output_config": at(
            "messages", output_config={"format": {"type": "json_schema", "schema": ...}}
        ),
        "messages tool": at(
            "messages", tools=[{"name": "f", "input_schema": ...}], tool_choice={"type": "any"}
        ),
    },
    "tool's name": {
        "chat": at("chat", **NAMED_TOOL),
        "chat stream": at("chat", stream=True, **NAMED_TOOL),
        "responses": at(
            "responses",
            tools=[{"type": "function", "name": ..., "parameters": {}}],
            tool_choice={"type": "function", "name": ...},
        ),
        "messages": at(
            "messages",
            tools=[{"name": ..., "input_schema": {}}],
            tool_choice={"type": "tool", "name": ...},
        ),
    },
    # Of a message's content.
    "part": {name: at(name, content=[...]) for name in ("conversation", *ROUTES)},
    "picture": {
        name: at(name, content=[{"type": "image_url", "image_url": {"url": ...}}])
        for name in ("conversation", "chat")
    },
    "template's argument": {
        name: at(name, chat_template_kwargs=...) for name in ("conversation", "chat")
    },
    "output": {"batch": at("batch", output_data_path=..., content=[TEMPLATE])},
    # Of a job or of the HTTP server, by the method.
    "route": {
        method: partial(lambda method, path: {"route": path, "method": method}, method)
        for method in ("GET", "POST", "PUT", "DELETE")
    },
    "path": {
        method: partial(Http, method)
        for method in ("GET", "POST", "DELETE", "TRACE", "PATCH", "OPTIONS")
    },
    "http": {"server": _sent},
}

# Where OpenAI's and Anthropic's clients put a schema, and where a function's arguments are one.
GROUPS = {
    "formats": ["chat response_format", "responses text.format", "messages output_config"],
    "tools": ["chat tool", "chat strict tool", "responses tool", "messages tool"],
}
