"""What a start changes in this process: vLLM's variables, and its metrics."""

from collections.abc import Iterator

import pytest
import vllm.envs
from prometheus_client import REGISTRY, Counter

from worker.engine.healing.starting import environ_may_change, take_metrics

NAME = "VLLM_CPU_KVCACHE_SPACE"


@pytest.fixture(autouse=True)
def _reading() -> Iterator[None]:
    yield
    vllm.envs.disable_envs_cache()


def test_vllm_reads_its_variables_while_a_core_starts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with environ_may_change():
        monkeypatch.setenv(NAME, "3")
        assert vllm.envs.VLLM_CPU_KVCACHE_SPACE == 3
    monkeypatch.setenv(NAME, "4")
    assert vllm.envs.VLLM_CPU_KVCACHE_SPACE == 3
    with environ_may_change():
        assert vllm.envs.VLLM_CPU_KVCACHE_SPACE == 4


def test_vllms_metrics_of_an_engine_have_a_registry_of_their_own() -> None:
    take_metrics()  # metrics that importing vLLM may have registered
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
