"""vLLM's metrics: each engine has its own."""

from prometheus_client import REGISTRY, Counter

from worker.engine.inprocess import take_metrics


def test_what_vllm_counts_of_an_engine_is_set_aside() -> None:
    take_metrics()  # those that importing vLLM may have registered
    vllms, other = Counter("vllm:asked", "Requests."), Counter("vllm_test", "Another's.")
    vllms.inc()
    try:
        assert REGISTRY.get_sample_value("vllm:asked_total") == 1
        apart = take_metrics()
        assert REGISTRY.get_sample_value("vllm:asked_total") is None
        assert REGISTRY.get_sample_value("vllm_test_total") == 0
        assert [family.name for family in apart.collect()] == ["vllm:asked"]
    finally:
        REGISTRY.unregister(other)
    assert list(take_metrics().collect()) == []
