"""What vLLM counts of one engine, in a place of its own."""

from prometheus_client import REGISTRY, CollectorRegistry

OWN = "vllm:"


def set_aside() -> CollectorRegistry:
    """Move what vLLM has just registered for an engine out of the process's registry.

    The next engine of the process would unregister it: vLLM reckons with one.
    """
    registry = CollectorRegistry()
    # There is no public way to list collectors; vLLM looks here, too.
    for collector in list(REGISTRY._collector_to_names):
        if getattr(collector, "_name", "").startswith(OWN):
            REGISTRY.unregister(collector)
            registry.register(collector)
    return registry
