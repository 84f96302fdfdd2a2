"""Values of this process's metrics, and a receiver of metrics by OTLP over HTTP, on loopback."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from prometheus_client import REGISTRY

from support.processes.background import HUNG_S


def metric(name: str, **labels: str) -> float:
    """Return the value of a sample; 0 if there is no such sample."""
    return REGISTRY.get_sample_value(name, labels) or 0


def watch_metrics(*names: str, **labels: str) -> Callable[[], list[float]]:
    """Return a function that returns how much each sample has increased since this call."""
    before = [metric(name, **labels) for name in names]
    return lambda: [
        metric(name, **labels) - value for name, value in zip(names, before, strict=True)
    ]


@dataclass
class Push:
    """One push: the request's headers and path, and its metrics by name."""

    headers: dict[str, str]
    resource: dict[str, str]
    metrics: dict[str, Metric]
    path: str = ""

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's points, or of a histogram's counts, with these labels."""
        found = self._points(name, labels)
        return float(sum(one.count if hasattr(one, "count") else one.as_double for one in found))

    def has(self, name: str, **labels: str) -> bool:
        """Return whether a metric has a point with these labels."""
        return bool(self._points(name, labels))

    def _points(self, name: str, labels: Mapping[str, str]) -> list[Any]:
        metric = self.metrics[name]
        return [
            point
            for point in getattr(metric, metric.WhichOneof("data") or "").data_points
            if labels.items() <= attributes(point.attributes).items()
        ]


@dataclass
class Receiver:
    """Records all pushes, and refuses them with ``status`` unless it is 200."""

    url: str
    pushes: list[Push] = field(default_factory=list)
    refused: int = 0
    status: int = 200
    changed: threading.Condition = field(default_factory=threading.Condition)

    def wait_for_pushes(self, count: int) -> list[Push]:
        """Wait for a number of pushes, and return all."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.pushes) >= count, HUNG_S)
        return self.pushes

    def wait_for_refused(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.refused >= count, HUNG_S)


def attributes(pairs: Any) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in pairs}


@contextmanager
def otlp_receiver() -> Iterator[Receiver]:
    """Start a receiver on a free port."""

    class OtlpHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with receiver.changed:
                if receiver.status == 200:
                    request = ExportMetricsServiceRequest.FromString(body)
                    push = parse_request(dict(self.headers), request, self.path)
                    receiver.pushes.append(push)
                else:
                    receiver.refused += 1
                receiver.changed.notify_all()
            self.send_response(receiver.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), OtlpHandler) as server:
        server.daemon_threads = True
        receiver = Receiver(f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield receiver
        finally:
            server.shutdown()


def parse_request(
    headers: dict[str, str], request: ExportMetricsServiceRequest, path: str = ""
) -> Push:
    (resource,) = request.resource_metrics
    metrics = {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
    return Push(headers, attributes(resource.resource.attributes), metrics, path)
