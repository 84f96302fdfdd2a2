"""Values of this process's metrics, which all tests of the process increase."""

from collections.abc import Callable

from prometheus_client import REGISTRY


def metric(name: str, **labels: str) -> float:
    """Return the value of a sample; 0 if there is no such sample."""
    return REGISTRY.get_sample_value(name, labels) or 0


def watch_metrics(*names: str, **labels: str) -> Callable[[], list[float]]:
    """Return a function that returns how much each sample has increased since this call."""
    before = [metric(name, **labels) for name in names]
    return lambda: [
        metric(name, **labels) - value for name, value in zip(names, before, strict=True)
    ]
