"""The worker's own metrics, and the union of the registries of this process and its engines.

The modules that take and answer jobs count here. ``/metrics`` has all series; ``push`` sends them
to a receiver, in OpenTelemetry's format (``otlp``, which is imported only then).
"""

import threading
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric

from worker.errors import WorkerError

# Bounds of the histograms, in seconds: from a fast post to a request that waits for a restart.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

JOBS_TAKEN = Counter("worker_jobs_taken", "Jobs that the worker has taken.")
JOBS_FINISHED = Counter(
    "worker_jobs_finished", "Jobs that have ended, by the HTTP status of their answer.", ["code"]
)
CHUNKS = Counter("worker_chunks", "Yields of the jobs that have ended.")
POSTS_RETRIED = Counter("worker_posts_retried", "Retries of failed posts to the platform.")
QUEUE_SECONDS = Histogram(
    "worker_queue_seconds",
    "Seconds from the arrival of a job until its answer was started.",
    buckets=BUCKETS,
)
FIRST_TOKEN_SECONDS = Histogram(
    "worker_first_token_seconds",
    "Seconds from the arrival of a streamed job until its first output.",
    buckets=BUCKETS,
)
DELIVERY_SECONDS = Histogram(
    "worker_delivery_seconds",
    "Seconds until the platform has accepted or rejected a post of a chunk or a result.",
    buckets=BUCKETS,
)
ENGINE_RESTARTS = Counter("worker_engine_restarts", "Restarts of engines that died or hung.")
BATCH_LINES = Counter(
    "worker_batch_lines", "Lines of batches that this worker has answered.", ["result"]
)
DOWNLOADED_BYTES = Counter("worker_downloaded_bytes", "Bytes downloaded from the hub.")
DOWNLOAD_SECONDS = Counter("worker_download_seconds", "Seconds of downloads from the hub.")


class RunningJobs:
    """The number of jobs that the worker has taken and that have not ended."""

    def __init__(self) -> None:
        self.all_ended = threading.Event()
        self.count = 0
        gauge = Gauge("worker_jobs_running", "Jobs that the worker has taken and not finished.")
        gauge.set_function(lambda: self.count)

    def add(self) -> None:
        self.count += 1
        JOBS_TAKEN.inc()

    def remove(self, status: int) -> None:
        """Count a job's end; set ``all_ended`` if no other job is running."""
        JOBS_FINISHED.labels(int(status)).inc()
        self.count -= 1
        if not self.count:
            self.all_ended.set()


RUNNING_JOBS = RunningJobs()


def _error_statuses(error: type[WorkerError]) -> set[int]:
    return {error.status}.union(*map(_error_statuses, error.__subclasses__()))


# Prometheus computes increases from an earlier sample: these series begin with 0.
# 499 is the status of a cancelled job.
for _status in sorted({200, 499} | _error_statuses(WorkerError)):
    JOBS_FINISHED.labels(_status)
for _result in ("completed", "failed"):
    BATCH_LINES.labels(_result)


class MergedRegistries:
    """Several registries as one: samples of metrics with the same name are combined."""

    def __init__(self, registries: Iterable[CollectorRegistry]) -> None:
        self._registries = registries

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for registry in self._registries:
            for family in registry.collect():
                merged = families.setdefault(family.name, family)
                if merged is not family:
                    merged.samples += family.samples
        yield from families.values()
