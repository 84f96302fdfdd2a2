"""A server that answers clients from a script and records the bodies of their requests."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from support.traffic.answers import FORMATS, Turn, chat, completions
from support.traffic.store import Request

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
