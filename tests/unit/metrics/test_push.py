"""When metrics are pushed, with which attributes, and pushes that fail."""

import logging
import socket
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from prometheus_client import CollectorRegistry, Counter
from support.metrics import Push, Receiver, otlp_receiver, parse_request
from support.processes.background import HUNG_S, wait_until

from worker.metrics import RUNNING_JOBS, push
from worker.settings import Settings

TAKEN = "worker_jobs_taken_total"
# Starts a pusher with additional settings.
Start = Callable[..., push.MetricsPusher | None]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with otlp_receiver() as running:
        yield running


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def start(receiver: Receiver, registry: CollectorRegistry) -> Iterator[Start]:
    RUNNING_JOBS.all_ended.clear()

    def start_pushing(**environ: str) -> push.MetricsPusher | None:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, **environ}
        settings = Settings.from_env({"MODEL_NAME": "org/model", **environ})
        pusher = push.start_pushing(settings, [SimpleNamespace(metrics=registry)], "0.32.0")
        if pusher:
            stack.callback(pusher.stop)
        return pusher

    with ExitStack() as stack:
        yield start_pushing


@pytest.fixture
def _push_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "INTERVAL_S", 0.02)


def run_job() -> None:
    RUNNING_JOBS.add()
    RUNNING_JOBS.remove(200)


def test_metrics_of_the_process_and_the_engines_are_pushed_at_the_start(
    start: Start, receiver: Receiver, registry: CollectorRegistry
) -> None:
    requests = Counter("vllm:asked", "Requests.", registry=registry)
    requests.inc(5)
    start()
    # Rates count from the first push, which is earlier than any job.
    requests.inc()
    (first,) = receiver.wait_for_pushes(1)
    assert first.value("vllm:asked_total") == 5
    # Series that no job has increased are pushed, too.
    assert first.has("worker_jobs_finished_total", code="507")
    assert "process_cpu_seconds_total" in first.metrics


def test_metrics_are_pushed_when_the_last_job_ends(start: Start, receiver: Receiver) -> None:
    start()
    before = receiver.wait_for_pushes(1)[0].value(TAKEN)
    RUNNING_JOBS.add()
    run_job()
    RUNNING_JOBS.remove(500)
    last = receiver.wait_for_pushes(2)[1]
    assert (last.value(TAKEN) - before, last.value("worker_jobs_running")) == (2, 0)


def test_metrics_are_not_pushed_if_another_job_follows(
    start: Start, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "IDLE_S", 0.01)
    start()
    receiver.wait_for_pushes(1)
    RUNNING_JOBS.add()
    try:
        # The second time, the pusher has dealt with the first.
        for _ in range(2):
            RUNNING_JOBS.all_ended.set()
            wait_until(lambda: not RUNNING_JOBS.all_ended.is_set())
        assert len(receiver.pushes) == 1
    finally:
        RUNNING_JOBS.remove(200)
    receiver.wait_for_pushes(2)


@pytest.mark.usefixtures("_push_often")
def test_metrics_are_pushed_regularly_while_a_job_runs(start: Start, receiver: Receiver) -> None:
    RUNNING_JOBS.add()
    try:
        start()
        assert receiver.wait_for_pushes(4)[3].value("worker_jobs_running") == 1
    finally:
        RUNNING_JOBS.remove(200)


def test_the_exit_pushes_once_more(start: Start, receiver: Receiver) -> None:
    pusher = start()
    assert pusher
    before = receiver.wait_for_pushes(1)[0].value(TAKEN)
    RUNNING_JOBS.add()
    pusher.stop()
    RUNNING_JOBS.remove(200)
    assert [each.value(TAKEN) - before for each in receiver.pushes] == [0, 1]


def test_a_push_has_the_headers_and_the_workers_attributes(
    start: Start, receiver: Receiver
) -> None:
    start(
        OTEL_EXPORTER_OTLP_ENDPOINT=f"{receiver.url}/otlp/",
        OTEL_EXPORTER_OTLP_HEADERS="Authorization=Bearer%20secret-key, x-team=a=b",
        RUNPOD_POD_ID="w1",
        RUNPOD_ENDPOINT_ID="ep",
    )
    (first,) = receiver.wait_for_pushes(1)
    assert first.path == "/otlp/v1/metrics"
    headers = {name.lower(): value for name, value in first.headers.items()}
    assert (headers["authorization"], headers["x-team"]) == ("Bearer secret-key", "a=b")
    assert first.resource == {
        "service.name": "llm-worker",
        "service.instance.id": "w1",
        "runpod.endpoint.id": "ep",
        "vllm.version": "0.32.0",
    }


def test_a_worker_without_an_id_has_the_id_of_its_process(start: Start, receiver: Receiver) -> None:
    start()
    instance = receiver.wait_for_pushes(1)[0].resource["service.instance.id"]
    assert instance.startswith(socket.gethostname())


def test_nothing_is_started_without_a_receiver(start: Start) -> None:
    assert start(OTEL_EXPORTER_OTLP_ENDPOINT="") is None


@pytest.mark.usefixtures("_push_often")
def test_a_failure_and_its_end_are_one_line_each(
    start: Start, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    receiver.status = 400
    start()
    receiver.wait_for_refused(3)
    receiver.status = 200
    receiver.wait_for_pushes(2)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        f"the metrics could not be pushed to {receiver.url}: "
        "Failed to export metrics batch code: 400, reason: Bad Request",
        "the metrics are pushed again",
    ]


def test_messages_of_the_exporter_in_other_threads_are_logged(
    start: Start, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    start()
    receiver.wait_for_pushes(1)
    logging.getLogger(push.EXPORTER_LOGGERS[1]).error("traces")
    assert [record.getMessage() for record in caplog.records] == ["traces"]


def test_metrics_are_pushed_by_grpc(start: Start) -> None:
    received: list[Push] = []

    class Service(metrics_service_pb2_grpc.MetricsServiceServicer):
        def Export(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802 - the protocol's name
            headers = {str(key): str(value) for key, value in context.invocation_metadata()}
            received.append(parse_request(headers, request))
            return metrics_service_pb2.ExportMetricsServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(1))
    add_service = metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server
    add_service(Service(), server)  # type: ignore[no-untyped-call]  # generated code
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        pusher = start(
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}",
            OTEL_EXPORTER_OTLP_PROTOCOL="grpc",
            OTEL_EXPORTER_OTLP_HEADERS="x-key=secret",
        )
        wait_until(lambda: received)
        assert received[0].headers["x-key"] == "secret"
        assert received[0].has("worker_jobs_finished_total", code="507")
        assert pusher
        pusher.stop()
    finally:
        server.stop(None).wait(HUNG_S)
