"""An engine in this process: its metrics and its slots. No core is started."""

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY, Counter
from support.engine.scripted import settings

from worker.engine.healing.starting import take_metrics
from worker.engine.inprocess import InProcessEngine


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


@pytest.mark.parametrize(
    ("scheduler", "ranks", "slots"),
    [
        ({"max_num_seqs": 8}, 1, 8),
        ({"max_num_seqs": 8, "max_num_active_seqs": None}, 1, 8),
        ({"max_num_seqs": 8, "max_num_active_seqs": 6}, 1, 6),
        ({"max_num_seqs": 8, "max_num_active_seqs": 6}, 2, 12),
    ],
)
async def test_the_slots_are_those_of_all_data_parallel_ranks(
    scheduler: dict[str, int], ranks: int, slots: int
) -> None:
    parallel = SimpleNamespace(data_parallel_size=ranks)
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(**scheduler), parallel_config=parallel
    )
    fake: Any = SimpleNamespace(vllm_config=config)
    core: Any = SimpleNamespace(client=fake)
    arguments: Any = SimpleNamespace(vllm=SimpleNamespace(served_model_name=["demo"]))
    loop = asyncio.get_running_loop()
    engine = InProcessEngine(core, arguments, settings(), loop, Future(), lambda: core)
    assert engine.slots == slots
