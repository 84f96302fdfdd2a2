"""The platform on loopback: its endpoints, workers and queues, with faults that tests set.

All requests and responses are validated against the published document.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from http.client import responses
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from support.runpod_api import document
from support.runpod_api.endpoints import Body, Endpoints, Refusal

KEY = "rpa_0123456789ABCDEFGHIJ"


@dataclass
class Fault:
    """A fault of the next matching calls.

    Attributes:
        verb: Verb of the calls.
        path_end: End of their path.
        status: Status of the response. There is no response for 0, which leaves the call open, and
            for -1, which closes the connection.
        times: Number of calls.
        headers: Headers of the response.
        detail: Detail of the response.
        errors: Errors of the response.
        takes_effect: Whether the call has its effect nevertheless.
        edit: Changes the content of a response that is otherwise correct; None for an error.
    """

    verb: str
    status: int
    path_end: str = ""
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)
    detail: str = "planted"
    errors: list[str] = field(default_factory=list)
    takes_effect: bool = False
    edit: Callable[[Any], Any] | None = None

    def matches(self, verb: str, path: str) -> bool:
        return self.times > 0 and verb == self.verb and path.endswith(self.path_end)


@dataclass
class Call:
    """A received request."""

    verb: str
    path: str
    body: Any


@dataclass
class Runpod(Endpoints):
    """The running platform.

    Attributes:
        bills: Records of bills, from ``bill``.
        faults: Faults; the first matching one determines the response to a call.
        closed: Set at the end, so that calls without a response end.
    """

    url: str = ""
    calls: list[Call] = field(default_factory=list)
    bills: list[Body] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    closed: threading.Event = field(default_factory=threading.Event)

    @property
    def changes(self) -> list[Call]:
        """The calls that change endpoints."""
        return [call for call in self.calls if call.verb != "GET" and call.path.startswith("/v2/")]

    def take_fault(self, verb: str, path: str) -> Fault | None:
        hit = next((fault for fault in self.faults if fault.matches(verb, path)), None)
        if hit:
            hit.times -= 1
        return hit


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    api: Runpod
    protocol_version = "HTTP/1.1"
    # Otherwise, a response's body waits 40 ms until its head is acknowledged.
    disable_nagle_algorithm = True

    def answer(self) -> None:
        """Answer a call of the REST API, which is validated, or of a queue."""
        url = urlsplit(self.path)
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.api.calls.append(Call(self.command, url.path, body))
        fault = self.api.take_fault(self.command, url.path)
        if fault and not fault.takes_effect and not fault.edit:
            self._fail(fault)
            return
        try:
            status, content = self._content(url.path, dict(parse_qsl(url.query)), body)
        except Refusal as refusal:
            status, content = refusal.status, problem(refusal.status, *refusal.args)
        if fault and fault.edit:
            self._send(status, fault.edit(content), {})
        elif fault:
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
        wrong = document.query_errors(operation, query)
        if wrong := wrong + document.body_errors(operation, body):
            raise Refusal(422, "Request validation failed.", wrong)
        if path == "/v2/billing/serverless":
            status, content = 200, list_bills(self.api.bills, query)
        else:
            last_event_id = self.headers.get("last-event-id")
            status, content = self.api.rest(self.command, path, body, last_event_id)
        if not path.endswith("/logs"):
            assert document.response_errors(operation, status, content) == []
        return status, content

    def _fail(self, fault: Fault) -> None:
        if fault.status <= 0:
            self.api.closed.wait(0 if fault.status else 60)
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

    def _stream(self, lines: Iterable[dict[str, str]]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for line in lines:
            event = f"id: {line['ts']}\ndata: {json.dumps(line)}\n\n"
            self.wfile.write(event.encode())
        with suppress(OSError):
            while self.api.pings and not self.api.closed.wait(0.02):
                self.wfile.write(b": ping\n\n")
        self.close_connection = True

    do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815 - http.server's names

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Print nothing."""


def problem(status: int, detail: str, errors: list[str] | None = None) -> dict[str, Any]:
    content: dict[str, Any] = {
        "title": responses.get(status, "Unknown"),
        "status": status,
        "detail": detail,
    }
    return content | ({"errors": errors} if errors else {})


@contextmanager
def runpod_api(state: Runpod | None = None) -> Iterator[Runpod]:
    """Run a platform on a free port."""
    state = state or Runpod()
    handler = type("ApiHandler", (Handler,), {"api": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        state.closed.set()
        server.shutdown()
        thread.join()
        server.server_close()


_AMOUNTS = ("totalAmount", "gpuAmount", "cpuAmount", "diskAmount", "feeAmount")


def bill(endpoint: str, day: date, gpu: float, disk: float = 0, fee: float = 0) -> Body:
    """Return an endpoint's record for a day, with amounts in USD."""
    amounts = zip(_AMOUNTS, (gpu + disk + fee, gpu, 0, disk, fee), strict=True)
    times = {"startTime": f"{day}T00:00:00Z", "endTime": f"{day + timedelta(1)}T00:00:00Z"}
    return {"serverlessId": endpoint, **times, **dict(amounts)}


def list_bills(bills: Iterable[Body], query: dict[str, str]) -> Body:
    """Return the records of a range of days, as the platform's document describes them."""
    if query.get("bucketSize") != "day" or not {"startTime", "endTime"} <= query.keys():
        raise Refusal(400, "the tests' platform has daily bills between two times only")
    start, end = _parse(query["startTime"]), _parse(query["endTime"])
    endpoint = query.get("serverlessId")
    records = [
        one
        for one in bills
        if start <= _parse(one["startTime"]) < end and endpoint in (None, one["serverlessId"])
    ]
    return {
        "records": records,
        "metadata": {
            "query": query,
            "recordCount": len(records),
            "totals": {name: sum(one[name] for one in records) for name in _AMOUNTS},
            "uniqueServerlessCount": len({one["serverlessId"] for one in records}),
        },
    }


def _parse(time: str) -> datetime:
    return datetime.fromisoformat(time).astimezone(UTC)
