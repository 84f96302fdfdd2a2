"""A server that answers clients from a script, in the formats of the routes that they call.

It records the bodies of their requests. The answers have the keys of the worker's own ones,
including those that are null.
"""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from support.traffic.store import Request

Json = dict[str, Any]
Event = tuple[str, Json]


@dataclass(frozen=True)
class Turn:
    """An answer of the scripted model.

    Args:
        text: The text; empty if the answer has none.
        calls: Names and arguments of tool calls. The arguments are text, which may be invalid JSON.
        reasoning: The reasoning before the text.
        is_cut: Whether a stream breaks off in the middle, or the answer ends at the token limit.
    """

    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    reasoning: str = ""
    is_cut: bool = False

    def call_ids(self, number: int) -> list[str]:
        return [f"chatcmpl-tool-{number:04}{index:04}" for index, _ in enumerate(self.calls)]

    def reason(self, called: str, stopped: str, cut: str) -> str:
        """Return the reason for the answer's end, in the words of an API."""
        return cut if self.is_cut else called if self.calls else stopped


# Returns the whole answer to a body, and the events of the same answer as a stream.
Format = Callable[[Turn, int, Json], tuple[Json, list[Event]]]


def chat(turn: Turn, number: int, body: Json) -> tuple[Json, list[Event]]:
    calls = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, (name, arguments) in zip(turn.call_ids(number), turn.calls, strict=True)
    ]
    nulls = dict.fromkeys(("refusal", "annotations", "audio", "function_call"))
    message = {"role": "assistant", "content": turn.text or None, **nulls}
    message |= {"tool_calls": calls, "reasoning": turn.reasoning or None}
    reason = turn.reason("tool_calls", "stop", "length")
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    base = {"id": f"chatcmpl-{number}", "created": 0, "model": body["model"]}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
    whole = {**base, "object": "chat.completion", "choices": [choice], "usage": usage}

    def chunk(delta: Json, reason: str | None = None) -> Event:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return "", {**base, "object": "chat.completion.chunk", "choices": [choice]}

    events = [chunk({"role": "assistant", "content": ""})]
    events += [chunk({"reasoning": turn.reasoning})] if turn.reasoning else []
    events += [chunk({"content": turn.text})] if turn.text else []
    for index, call in enumerate(calls):
        function: Any = call["function"]
        head = {**call, "index": index, "function": {"name": function["name"]}}
        rest = {"index": index, "function": {"arguments": function["arguments"]}}
        events += [chunk({"content": None, "tool_calls": [part]}) for part in (head, rest)]
    events.append(chunk({}, reason))
    if (body.get("stream_options") or {}).get("include_usage"):
        events.append(("", {**base, "object": "chat.completion.chunk", "choices": []}))
        events[-1][1]["usage"] = usage
    return whole, events


def completions(turn: Turn, number: int, body: Json) -> tuple[Json, list[Event]]:
    base = {"id": f"cmpl-{number}", "object": "text_completion", "created": 0}
    choice = {"index": 0, "text": turn.text, "logprobs": None, "finish_reason": "stop"}
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    whole = {**base, "model": body["model"], "choices": [choice], "usage": usage}
    return whole, [("", whole)]


def messages(turn: Turn, number: int, body: Json) -> tuple[Json, list[Event]]:
    # A block, its content at the start of a stream, and its delta.
    blocks: list[tuple[Json, Json, Json]] = []
    if turn.reasoning:
        thinking = {"type": "thinking", "thinking": turn.reasoning, "signature": "00ff"}
        delta = {"type": "thinking_delta", "thinking": turn.reasoning}
        blocks.append((thinking, {**thinking, "thinking": ""}, delta))
    if turn.text:
        delta = {"type": "text_delta", "text": turn.text}
        blocks.append(({"type": "text", "text": turn.text}, {"type": "text", "text": ""}, delta))
    for call_id, (name, arguments) in zip(turn.call_ids(number), turn.calls, strict=True):
        start = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": arguments}
        blocks.append(({**start, "input": _json_object(arguments)}, start, delta))
    reason = turn.reason("tool_use", "end_turn", "max_tokens")
    usage = {"input_tokens": 9, "output_tokens": 3}
    base: Json = {"id": f"chatcmpl-{number}", "type": "message", "role": "assistant"}
    base |= {"model": body["model"], "stop_sequence": None}
    content = [block for block, _, _ in blocks]
    whole = {**base, "content": content, "stop_reason": reason, "usage": usage}
    begun = {
        **base,
        "content": [],
        "stop_reason": None,
        "usage": {**usage, "output_tokens": 0},
    }
    events: list[Json] = [{"type": "message_start", "message": begun}]
    for index, (_, block, delta) in enumerate(blocks):
        events += [
            {"type": "content_block_start", "index": index, "content_block": block},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    end = {"stop_reason": reason, "stop_sequence": None}
    events += [{"type": "message_delta", "delta": end, "usage": usage}, {"type": "message_stop"}]
    return whole, [(event["type"], event) for event in events]


def _json_object(text: str) -> Json:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def responses(turn: Turn, number: int, body: Json) -> tuple[Json, list[Event]]:
    items = _output_items(turn, number)
    nulls = dict.fromkeys(("incomplete_details", "instructions", "metadata", "reasoning", "user"))
    usage: Json = {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12}
    usage |= {"input_tokens_details": {"cached_tokens": 0}}
    usage |= {"output_tokens_details": {"reasoning_tokens": 0}}
    base: Json = {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 0,
        "model": body["model"],
    }
    base |= {**nulls, "tools": [], "tool_choice": "auto", "parallel_tool_calls": True}
    whole = {**base, "status": "completed", "output": items, "usage": usage}
    start = {**base, "status": "in_progress", "output": [], "usage": None}
    events: list[Json] = [
        {"type": "response.created", "response": start},
        {"type": "response.in_progress", "response": start},
    ]
    for index, item in enumerate(items):
        events += [{**event, "output_index": index} for event in _item_events(item)]
    events.append({"type": "response.completed", "response": whole})
    return whole, [
        (event["type"], {**event, "sequence_number": place}) for place, event in enumerate(events)
    ]


def _output_items(turn: Turn, number: int) -> list[Json]:
    items: list[Json] = []
    if turn.reasoning:
        content = [{"type": "reasoning_text", "text": turn.reasoning}]
        nulls: Json = {"summary": [], "encrypted_content": None, "status": None}
        items.append({"id": f"rs_{number}", "type": "reasoning", "content": content, **nulls})
    if turn.text:
        part: Json = {"type": "output_text", "text": turn.text, "annotations": [], "logprobs": None}
        item = {"id": f"msg_{number}", "type": "message", "role": "assistant", "content": [part]}
        items.append({**item, "status": "completed", "phase": None})
    for call_id, (name, arguments) in zip(turn.call_ids(number), turn.calls, strict=True):
        call = {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}
        items.append({**call, "id": f"fc_{call_id}", "status": "completed", "namespace": None})
    return items


def _item_events(item: Json) -> Iterator[Json]:
    place = {"item_id": item["id"]}
    if item["type"] == "function_call":
        started = {**item, "arguments": "", "status": "in_progress"}
        yield {"type": "response.output_item.added", "item": started}
        event = "response.function_call_arguments"
        yield {"type": f"{event}.delta", "delta": item["arguments"], **place}
        end = {"arguments": item["arguments"], "name": item["name"]}
        yield {"type": f"{event}.done", **end, **place}
    else:
        yield {"type": "response.output_item.added", "item": {**item, "content": []}}
        (part,) = item["content"]
        place["content_index"] = 0
        yield {"type": "response.content_part.added", "part": {**part, "text": ""}, **place}
        event = f"response.{part['type']}"
        yield {"type": f"{event}.delta", "delta": part["text"], "logprobs": [], **place}
        yield {"type": f"{event}.done", "text": part["text"], "logprobs": [], **place}
        yield {"type": "response.content_part.done", "part": part, **place}
    yield {"type": "response.output_item.done", "item": item}


def llm_engine(turn: Turn, number: int, _: Json) -> tuple[Json, list[Event]]:
    output = {"text": turn.text, "num_prompt_tokens": 9, "num_completion_tokens": 3}
    whole = {"request_id": f"{number}", "output": output}
    return whole, [("", {"request_id": f"{number}", "output": {**output, "finished": True}})]


def embeddings(_: Turn, __: int, body: Json) -> tuple[Json, list[Event]]:
    texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
    vector = [0.5, 0.25]
    data = [{"object": "embedding", "index": i, "embedding": vector} for i, _ in enumerate(texts)]
    usage = {"prompt_tokens": 2, "total_tokens": 2}
    return {"object": "list", "model": body["model"], "data": data, "usage": usage}, []


def job(turn: Turn, number: int, _: Json) -> tuple[Json, list[Event]]:
    output = {"choices": [{"tokens": [turn.text]}], "usage": {"input": 9, "output": 3}}
    return {"id": f"job-{number}", "status": "COMPLETED", "output": [output]}, []


# By the end of the path.
FORMATS: dict[str, Format] = {
    "/chat/completions": chat,
    "/v1/completions": completions,
    "/v1/messages": messages,
    "/responses": responses,
    "/embeddings": embeddings,
    "/completions-sync": llm_engine,
    "/completions-stream": llm_engine,
    "/run": job,
    "/runsync": job,
}


MODEL = {"id": "demo", "object": "model", "created": 0, "owned_by": "vllm"}
MODELS = {"object": "list", "data": [{**MODEL, "max_model_len": 131_072}]}
# The answer after the script's last turn. Afterwards the script begins again.
LAST = Turn("All is done.")


@dataclass
class RecordingServer:
    """A running server.

    Args:
        url: URL of the server.
        turns: Answers to the requests with tools.
        plain: Answer to requests without tools, such as for titles.
        requests: Recorded requests.
    """

    url: str
    turns: Sequence[Turn]
    plain: Turn
    requests: list[Request] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _next: int = 0

    def record(self, path: str, body: dict[str, Any]) -> tuple[Turn, int]:
        """Record a request; return its answer and the answer's number."""
        with self._lock:
            self.requests.append(Request(path, body))
            number = len(self.requests)
            if not body.get("tools"):
                return self.plain, number
            self._next = (self._next + 1) % (len(self.turns) + 1)
            return [LAST, *self.turns][self._next], number


class _Handler(BaseHTTPRequestHandler):
    recording: RecordingServer

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def do_HEAD(self) -> None:
        self._send(200, b"", "text/plain")

    def do_GET(self) -> None:
        found = MODELS if self.path.endswith("/models") else {"status": "healthy"}
        self._send_json(200, found)

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        path = urlsplit(self.path).path
        if path.endswith("/count_tokens"):
            self.recording.requests.append(Request(self.path, json.loads(data)))
            self._send_json(200, {"input_tokens": 9})
            return
        form = next((form for end, form in FORMATS.items() if path.endswith(end)), None)
        if form is None:
            self._send_json(404, {"error": {"message": f"no route {path}", "code": 404}})
            return
        body = json.loads(data)
        turn, number = self.recording.record(self.path, body)
        whole, events = form(turn, number, body)
        if not (body.get("stream") or path.endswith("-stream")):
            self._send_json(200, whole)
            return
        end = "data: [DONE]\n\n" if form in (chat, completions) else ""
        if turn.is_cut:
            events, end = events[: len(events) - 2], ""
        self._send(200, "".join(map(_event, events)).encode() + end.encode(), "text/event-stream")

    def _send_json(self, status: int, value: Any) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: int, data: bytes, media_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _event(event: tuple[str, dict[str, Any]]) -> str:
    name, data = event
    return (
        f"event: {name}\ndata: {json.dumps(data)}\n\n" if name else f"data: {json.dumps(data)}\n\n"
    )


@contextmanager
def recording_server(turns: Sequence[Turn], plain: Turn) -> Iterator[RecordingServer]:
    """Start a server on a free port of this machine."""
    recording = RecordingServer("", turns, plain)
    handler = type("Handler", (_Handler,), {"recording": recording})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        recording.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield recording
        finally:
            server.shutdown()
            thread.join()
