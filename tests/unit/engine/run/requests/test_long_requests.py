"""The queue in which long requests wait before they are added to the engine."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from support.engine.cores import settle

from worker.engine.run.requests import long_requests as module
from worker.engine.run.requests.texts import is_long, mark_if_long


class Core:
    """A fake core with 100 tokens per step and 8 slots."""

    def __init__(self, ranks: int = 1) -> None:
        self.errored = False
        scheduler = SimpleNamespace(max_num_batched_tokens=100, max_num_seqs=8)
        parallel = SimpleNamespace(data_parallel_size=ranks)
        self.vllm_config = SimpleNamespace(scheduler_config=scheduler, parallel_config=parallel)
        self.states: dict[str, Any] = {}
        self.output_processor = SimpleNamespace(request_states=self.states)

    async def add_request(self, request_id: str, prompt: int, params: None, **_: Any) -> str:
        await asyncio.sleep(0)
        self.states[f"{request_id}-of-vllm"] = SimpleNamespace(
            external_req_id=request_id, prompt_len=prompt, is_prefilling=True
        )
        return request_id

    def submit(self, name: str, tokens: int, *, long: bool = True) -> asyncio.Task[str]:
        async def run() -> str:
            is_long.set(False)
            mark_if_long(long=long)
            added: str = await self.add_request(name, tokens, None, lora_request=None)
            return added

        return asyncio.create_task(run())

    def finish_prefill(self, name: str) -> None:
        self.states[f"{name}-of-vllm"].is_prefilling = False

    async def request_ids(self) -> list[str]:
        """Return the requests in the core once all others wait."""
        await settle()
        return [state.external_req_id for state in self.states.values()]


@pytest.fixture
def core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A core whose queue for long requests polls without pauses; a parameter sets its ranks."""
    monkeypatch.setattr(module, "POLL_INTERVAL_S", 0)
    core: Any = Core(getattr(request, "param", 1))
    module.LongRequestQueue(core)
    return core


async def test_the_engine_has_prompts_for_two_steps_and_others_wait(core: Any) -> None:
    several = [core.submit(str(number), 100) for number in range(4)]
    assert await several[1] == "1"
    # A short request doesn't wait and isn't counted.
    assert await core.submit("short", 1_000, long=False) == "short"
    assert await core.request_ids() == ["0", "1", "short"]
    core.finish_prefill("0")
    assert await core.request_ids() == ["0", "1", "short", "2"]
    del core.states["1-of-vllm"]
    assert await several[3] == "3"


@pytest.mark.parametrize("core", [2], indirect=True)
async def test_each_data_parallel_rank_has_its_own_capacity(core: Any) -> None:
    several = [core.submit(str(number), 100) for number in range(5)]
    assert await core.request_ids() == ["0", "1", "2", "3"]
    core.finish_prefill("0")
    assert await several[4] == "4"


async def test_a_prompt_larger_than_two_steps_is_accepted(core: Any) -> None:
    tasks = [core.submit(name, tokens) for name, tokens in (("a", 10), ("b", 10_000), ("c", 1))]
    assert await core.request_ids() == ["a", "b"]
    core.finish_prefill("b")
    assert await tasks[2] == "c"


async def test_a_slot_is_left_to_short_requests(core: Any) -> None:
    several = [core.submit(str(number), 1) for number in range(8)]
    await asyncio.gather(*several[:7])
    for number in range(7):
        core.finish_prefill(str(number))
    assert len(await core.request_ids()) == 7
    del core.states["3-of-vllm"]
    assert await several[7] == "7"


async def test_a_cancelled_request_does_not_block_the_next_one(core: Any) -> None:
    _, cancelled, _ = core.submit("a", 200), core.submit("gone", 1), core.submit("next", 1)
    assert await core.request_ids() == ["a"]
    cancelled.cancel()
    core.finish_prefill("a")
    assert await core.request_ids() == ["a", "next"]


async def test_no_request_waits_for_a_dead_engine(core: Any) -> None:
    _, waiting = core.submit("a", 200), core.submit("b", 1)
    assert await core.request_ids() == ["a"]
    core.errored = True
    assert await waiting == "b"
