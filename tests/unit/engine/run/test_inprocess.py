"""The running engine in this process."""

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from support.engine.scripted import settings

from worker.engine.run.inprocess import InProcessEngine


@pytest.mark.parametrize(
    ("scheduler", "ranks", "slots"),
    [
        ({"max_num_seqs": 8}, 1, 8),
        ({"max_num_seqs": 8, "max_num_active_seqs": None}, 1, 8),
        ({"max_num_seqs": 8, "max_num_active_seqs": 6}, 1, 6),
        ({"max_num_seqs": 8, "max_num_active_seqs": 6}, 2, 12),
    ],
)
async def test_the_slots_of_all_ranks_are_added_up(
    scheduler: dict[str, int], ranks: int, slots: int
) -> None:
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(**scheduler),
        parallel_config=SimpleNamespace(data_parallel_size=ranks),
    )
    core: Any = SimpleNamespace(client=SimpleNamespace(vllm_config=config))
    arguments: Any = SimpleNamespace(vllm_args=SimpleNamespace(served_model_name=["demo"]))
    loop = asyncio.get_running_loop()
    engine = InProcessEngine(core, arguments, settings(), loop, Future(), lambda: core)
    assert engine.slots == slots
