"""Converts Prometheus' metrics to OpenTelemetry's, and exports them by OTLP.

Imported only if metrics are pushed. vLLM requires and imports OpenTelemetry's packages.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

import prometheus_client
from opentelemetry.exporter.otlp.proto.grpc import metric_exporter as grpc_exporter
from opentelemetry.exporter.otlp.proto.http import metric_exporter as http_exporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.samples import Sample

from worker.settings import Settings

CUMULATIVE = AggregationTemporality.CUMULATIVE
SUCCESS = MetricExportResult.SUCCESS
# Suffix of the samples with the time at which a series began; not a metric of its own.
CREATED = "_created"
# A label set, as a key.
Labels = frozenset[tuple[str, str]]


def create_exporter(settings: Settings) -> MetricExporter:
    endpoint = settings.otel_exporter_otlp_endpoint or ""
    headers = settings.otlp_headers
    if settings.otel_exporter_otlp_protocol == "grpc":
        return grpc_exporter.OTLPMetricExporter(endpoint=endpoint, headers=headers)
    url = f"{endpoint.rstrip('/')}/v1/metrics"
    return http_exporter.OTLPMetricExporter(endpoint=url, headers=headers)


def create_resource(attributes: Mapping[str, str]) -> Resource:
    """Return the worker's attributes; those in the environment take precedence."""
    return Resource(attributes).merge(OTELResourceDetector().detect())


def convert_metrics(
    families: Iterable[prometheus_client.Metric], resource: Resource
) -> MetricsData:
    """Return metrics in OpenTelemetry's format, with the names that ``/metrics`` has."""
    now = time.time_ns()
    metrics = [metric for family in families for metric in _convert_family(family, now)]
    scope = ScopeMetrics(InstrumentationScope("worker"), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _convert_family(family: prometheus_client.Metric, now: int) -> Iterator[Metric]:
    """Yield a family's metrics: one, or two for a summary."""
    samples: dict[str, list[Sample]] = defaultdict(list)
    starts: dict[Labels, int] = {}
    for sample in family.samples:
        if sample.name == family.name + CREATED:
            starts[_key(sample.labels)] = round(sample.value * 1e9)
        else:
            samples[sample.name].append(sample)
    if family.type == "histogram":
        points = _histogram_points(family.name, samples, starts, now)
        yield Metric(family.name, family.documentation, "", Histogram(points, CUMULATIVE))
        return
    for name, values in samples.items():
        numbers = [
            NumberDataPoint(one.labels, starts.get(_key(one.labels), 0), now, one.value)
            for one in values
        ]
        is_sum = family.type in ("counter", "summary")
        data = Sum(numbers, CUMULATIVE, is_monotonic=True) if is_sum else Gauge(numbers)
        yield Metric(name, family.documentation, "", data)


def _histogram_points(
    name: str, samples: Mapping[str, list[Sample]], starts: Mapping[Labels, int], now: int
) -> list[HistogramDataPoint]:
    sums = {_key(one.labels): one.value for one in samples[f"{name}_sum"]}
    buckets: dict[Labels, list[tuple[float, float]]] = defaultdict(list)
    for sample in samples[f"{name}_bucket"]:
        labels = dict(sample.labels)
        bound = float(labels.pop("le"))
        buckets[_key(labels)].append((bound, sample.value))
    points = []
    for key, counts in buckets.items():
        # Prometheus' buckets contain those below them.
        below = [0.0, *(count for _, count in counts)]
        points.append(
            HistogramDataPoint(
                dict(key),
                starts.get(key, 0),
                now,
                count=int(below[-1]),
                sum=sums[key],
                bucket_counts=[int(b - a) for a, b in pairwise(below)],
                explicit_bounds=[bound for bound, _ in counts[:-1]],
                min=None,  # type: ignore[arg-type]  # Prometheus has neither; OTLP needs neither
                max=None,  # type: ignore[arg-type]  # see above
            )
        )
    return points


def _key(labels: Mapping[str, str]) -> Labels:
    return frozenset(labels.items())
