"""Pushes the metrics of this worker to a receiver, since nothing can scrape a queue's workers.

The last figures must arrive before the platform freezes or kills the worker, which it does without
a signal. So they are pushed when the last job ends, and not only regularly.
"""

import logging
import threading
import time
from collections.abc import Iterable
from typing import Protocol

from prometheus_client import REGISTRY, CollectorRegistry, Metric

from worker.metrics import RUNNING_JOBS, MergedRegistries
from worker.settings import Settings

log = logging.getLogger(__name__)

# Seconds from one push to the next while the worker has jobs, or none.
INTERVAL_S = 15.0
# Seconds from the end of the last job to its push, unless another job arrives. vLLM counts the last
# tokens only after it has passed them on.
IDLE_S = 0.2
# Seconds between two pushes of a worker whose jobs are short and rare: a push takes some
# milliseconds of the interpreter.
MIN_INTERVAL_S = 0.5
# Loggers of the exporters, which would repeat an error at every push.
EXPORTER_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
)


class MeasuredEngine(Protocol):
    """An engine with metrics of its own."""

    @property
    def metrics(self) -> CollectorRegistry:
        """The metrics, which are others when the engine is started again."""


class MetricsPusher:
    """Pushes metrics from a thread of its own until ``stop``."""

    def __init__(
        self, settings: Settings, engines: Iterable[MeasuredEngine], vllm_version: str
    ) -> None:
        self._settings = settings
        self._vllm_version = vllm_version
        self._engines = engines
        self._wake = RUNNING_JOBS.all_ended
        self._stopping = threading.Event()
        self._has_failed = False
        # Messages of the exporter about the current push.
        self._problems: list[str] = []
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        for name in EXPORTER_LOGGERS:
            logging.getLogger(name).addFilter(self._keep_problem)
        # Rates count from these values, also if the first job ends before the first push.
        self._initial = self._collect()
        self._thread.start()

    def stop(self) -> None:
        """Push once more, and wait for the end of that."""
        self._stopping.set()
        self._wake.set()
        self._thread.join()

    def _keep_problem(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record, which is not about a push."""
        is_about_push = self._thread.is_alive() and record.thread == self._thread.ident
        if is_about_push:
            self._problems.append(record.getMessage())
        return not is_about_push

    def _run(self) -> None:
        from worker.metrics import otlp  # noqa: PLC0415 - needed only here

        settings = self._settings
        attributes = {
            "service.name": "llm-worker",
            "service.instance.id": settings.worker_id,
            "runpod.endpoint.id": settings.runpod_endpoint_id or "",
            "vllm.version": self._vllm_version,
        }
        resource = otlp.create_resource({name: text for name, text in attributes.items() if text})
        exporter = otlp.create_exporter(settings)
        metrics, is_last = self._initial, False
        while True:
            self._problems.clear()
            result = exporter.export(otlp.convert_metrics(metrics, resource))
            has_failed = result is not otlp.SUCCESS
            # Log the first failure, and the first success after it.
            if has_failed and not self._has_failed:
                reason = self._problems[0] if self._problems else "unknown error"
                address = settings.otel_exporter_otlp_endpoint
                log.warning("the metrics could not be pushed to %s: %s", address, reason)
            elif self._has_failed and not has_failed:
                log.info("the metrics are pushed again")
            self._has_failed = has_failed
            if is_last:
                return
            self._wait_until_due()
            is_last = self._stopping.is_set()
            metrics = self._collect()

    def _collect(self) -> list[Metric]:
        registries = MergedRegistries([REGISTRY, *(engine.metrics for engine in self._engines)])
        return [*registries.collect()]

    def _wait_until_due(self) -> None:
        pushed_at = time.monotonic()
        while self._wake.wait(max(0.0, pushed_at + INTERVAL_S - time.monotonic())):
            self._wake.clear()
            pause_s = max(IDLE_S, pushed_at + MIN_INTERVAL_S - time.monotonic())
            if self._stopping.wait(pause_s) or not RUNNING_JOBS.count:
                return


def start_pushing(
    settings: Settings, engines: Iterable[MeasuredEngine], vllm_version: str
) -> MetricsPusher | None:
    """Push the metrics of this process and of its engines from now on, if there is a receiver."""
    if settings.otel_exporter_otlp_endpoint is None:
        return None
    pusher = MetricsPusher(settings, engines, vllm_version)
    pusher.start()
    return pusher
