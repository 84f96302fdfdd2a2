"""The platform on loopback: its endpoints, workers and queues, and the faults that a test plants.

Every request is held to the published document, and so is every answer that is given.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from support.runpod_api import document
from support.runpod_api.endpoints import Endpoints, Refusal

KEY = "rpa_0123456789ABCDEFGHIJ"


@dataclass
class Fault:
    """What becomes of the next calls of a kind.

    Attributes:
        verb: of the calls.
        end: of their path.
        status: that they are answered with; without an answer 0 leaves them open, -1 closes them.
        times: how many calls.
        headers: of the answer.
        detail: of the answer.
        errors: of the answer.
        carried_out: the call has its effect all the same.
    """

    verb: str
    status: int
    end: str = ""
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)
    detail: str = "planted"
    errors: list[str] = field(default_factory=list)
    carried_out: bool = False

    def hits(self, verb: str, path: str) -> bool:
        return self.times > 0 and verb == self.verb and path.endswith(self.end)


@dataclass
class Call:
    """A request that came."""

    verb: str
    path: str
    body: Any


@dataclass
class Runpod(Endpoints):
    """The running platform.

    Attributes:
        url: of the server.
        calls: all requests that came.
        faults: the first one that hits a call is its answer.
        ended: set at the end, so that calls without an answer end.
    """

    url: str = ""
    calls: list[Call] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def changes(self) -> list[Call]:
        """The calls that change endpoints."""
        return [call for call in self.calls if call.verb != "GET" and call.path.startswith("/v2/")]

    def fault(self, verb: str, path: str) -> Fault | None:
        hit = next((fault for fault in self.faults if fault.hits(verb, path)), None)
        if hit:
            hit.times -= 1
        return hit


class Handler(BaseHTTPRequestHandler):
    """Answers one request of a platform."""

    api: Runpod
    protocol_version = "HTTP/1.1"
    # Or the body of an answer waits until its head is acknowledged, 40 ms.
    disable_nagle_algorithm = True

    def answer(self) -> None:
        """Answer a call of the REST API, which is held to the document, or of a queue."""
        url = urlsplit(self.path)
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.api.calls.append(Call(self.command, url.path, body))
        fault = self.api.fault(self.command, url.path)
        if fault and not fault.carried_out:
            self._fail(fault)
            return
        try:
            status, content = self._content(url.path, dict(parse_qsl(url.query)), body)
        except Refusal as refusal:
            status, content = refusal.status, problem(refusal.status, *refusal.args)
        if fault:
            self._fail(fault)
        elif url.path.endswith("/logs") and status == 200:
            self._stream(content)
        else:
            self._send(status, content, {})

    def _content(self, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        if self.headers.get("authorization") != f"Bearer {KEY}":
            raise Refusal(401, "invalid bearer token")
        if path.startswith("/queue/"):
            return 200, self.api.queue(self.command, path.removeprefix("/queue/"), body)
        operation = document.operation(self.command, path)
        if operation is None:
            raise Refusal(404, "resource not found")
        wrong = document.wrong_with_query(operation, query)
        if wrong := wrong + document.wrong_with_body(operation, body):
            raise Refusal(422, "Request validation failed.", wrong)
        status, content = self.api.rest(self.command, path, body, self.headers.get("last-event-id"))
        if not path.endswith("/logs"):
            assert document.wrong_with_answer(operation, status, content) == []
        return status, content

    def _fail(self, fault: Fault) -> None:
        if fault.status <= 0:
            self.api.ended.wait(0 if fault.status else 60)
            self.close_connection = True
            return
        content = problem(fault.status, fault.detail, fault.errors)
        self._send(fault.status, content, fault.headers)

    def _send(self, status: int, content: Any, headers: dict[str, str]) -> None:
        data = b"" if content is None else json.dumps(content).encode()
        kind = "application/json" if status < 400 else "application/problem+json"
        self.send_response(status)
        for name, value in {"Content-Type": kind, **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, lines: list[dict[str, str]]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for line in lines:
            event = f"id: {line['ts']}\ndata: {json.dumps(line)}\n\n"
            self.wfile.write(event.encode())
        with suppress(OSError):
            while self.api.pings and not self.api.ended.wait(0.02):
                self.wfile.write(b": ping\n\n")
        self.close_connection = True

    do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815 - http.server's names

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Print nothing."""


def problem(status: int, detail: str, errors: list[str] | None = None) -> dict[str, Any]:
    content: dict[str, Any] = {
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
    }
    return content | ({"errors": errors} if errors else {})


@contextmanager
def runpod_api() -> Iterator[Runpod]:
    """Run a platform on a free port."""
    state = Runpod()
    handler = type("ApiHandler", (Handler,), {"api": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        state.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()
