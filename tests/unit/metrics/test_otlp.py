"""Prometheus' metrics as OpenTelemetry's: every kind, its labels, its start, and the names."""

import math
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE, Metric
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, Summary
from support.metrics import attributes

from worker.metrics import MergedRegistries
from worker.metrics.otlp import convert_metrics, create_resource
from worker.settings.environment import set_variable


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def convert(*registries: CollectorRegistry) -> dict[str, Metric]:
    """Return the metrics of registries as a receiver gets them, by name."""
    data = convert_metrics(MergedRegistries(registries).collect(), create_resource({}))
    (resource,) = encode_metrics(data).resource_metrics
    (scope,) = resource.scope_metrics
    assert len({metric.name for metric in scope.metrics}) == len(scope.metrics)
    return {metric.name: metric for metric in scope.metrics}


def values(points: Any) -> dict[str, float]:
    """Return the values of points by the values of their labels."""
    return {",".join(attributes(point.attributes).values()): point.as_double for point in points}


def test_a_counter_is_a_monotonic_sum_with_the_name_of_its_samples(
    registry: CollectorRegistry,
) -> None:
    counter = Counter("vllm:asked", "Requests.", ["model"], registry=registry)
    counter.labels("a").inc(3)
    counter.labels("b")
    (metric,) = convert(registry).values()
    assert (metric.name, metric.description) == ("vllm:asked_total", "Requests.")
    assert metric.sum.is_monotonic
    assert metric.sum.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
    assert values(metric.sum.data_points) == {"a": 3, "b": 0}


def test_a_gauge_stays_a_gauge(registry: CollectorRegistry) -> None:
    Gauge("level", "Level.", ["place"], registry=registry).labels("x").set(-1.5)
    Info("build", "Build.", registry=registry).info({"version": "1"})
    metrics = convert(registry)
    assert values(metrics["level"].gauge.data_points) == {"x": -1.5}
    assert values(metrics["build_info"].gauge.data_points) == {"1": 1}


def test_a_histogram_has_the_count_of_each_bucket_alone(registry: CollectorRegistry) -> None:
    histogram = Histogram("wait", "Wait.", ["model"], registry=registry, buckets=(1, 2.5))
    for value in (0.5, 1, 2, 7, 8):
        histogram.labels("a").observe(value)
    histogram.labels("b").observe(1.5)
    (metric,) = convert(registry).values()
    first, second = metric.histogram.data_points
    assert metric.name == "wait"
    assert metric.histogram.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
    assert attributes(first.attributes) == {"model": "a"}
    assert (list(first.explicit_bounds), list(first.bucket_counts)) == ([1, 2.5], [2, 1, 2])
    assert (first.count, first.sum) == (5, 18.5)
    assert (first.HasField("min"), first.HasField("max")) == (False, False)
    assert (list(second.bucket_counts), second.count, second.sum) == ([0, 1, 0], 1, 1.5)


def test_a_summary_is_a_sum_of_its_count_and_one_of_its_values(registry: CollectorRegistry) -> None:
    Summary("size", "Size.", registry=registry).observe(7)
    metrics = convert(registry)
    assert {name: values(metric.sum.data_points) for name, metric in metrics.items()} == {
        "size_count": {"": 1},
        "size_sum": {"": 7},
    }


def test_a_series_starts_when_it_was_created(registry: CollectorRegistry) -> None:
    counter = Counter("asked", "Requests.", ["model"], registry=registry)
    for model in ("a", "b"):
        counter.labels(model)
    Histogram("wait", "Wait.", registry=registry)
    created = registry.get_sample_value("asked_created", {"model": "b"}) or math.nan
    metrics = convert(registry)
    _, second = metrics["asked_total"].sum.data_points
    (point,) = metrics["wait"].histogram.data_points
    assert second.start_time_unix_nano == round(created * 1e9)
    for one in (second, point):
        assert 0 < one.start_time_unix_nano <= one.time_unix_nano


def test_series_of_two_engines_are_points_of_one_metric(registry: CollectorRegistry) -> None:
    other = CollectorRegistry()
    for owner, model in ((registry, "a"), (other, "b")):
        Histogram("wait", "Wait.", ["model"], registry=owner).labels(model).observe(1)
        Counter("asked", "Requests.", ["model"], registry=owner).labels(model).inc()
    metrics = convert(registry, other)
    assert values(metrics["asked_total"].sum.data_points) == {"a": 1, "b": 1}
    assert [point.count for point in metrics["wait"].histogram.data_points] == [1, 1]


def test_the_operators_attributes_take_precedence() -> None:
    set_variable("OTEL_SERVICE_NAME", "chat")
    set_variable("OTEL_RESOURCE_ATTRIBUTES", "region=eu%20west,service.instance.id=x")
    resource = create_resource({"service.name": "llm-worker", "runpod.endpoint.id": "ep"})
    assert resource.attributes == {
        "service.name": "chat",
        "service.instance.id": "x",
        "runpod.endpoint.id": "ep",
        "region": "eu west",
    }
