"""How long requests wait for each other before the engine has them."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from worker.engine.requests.texts import is_long, mark
from worker.engine.requests.turns import take_turns


class Core:
    """Takes requests, and computes them when it is told to; a step has 100 tokens, of 8 places."""

    def __init__(self, ranks: int = 1) -> None:
        self.errored = False
        config = {"max_num_batched_tokens": 100, "max_num_seqs": 8}
        self.vllm_config = SimpleNamespace(
            scheduler_config=SimpleNamespace(**config),
            parallel_config=SimpleNamespace(data_parallel_size=ranks),
        )
        self.states: dict[str, Any] = {}
        self.output_processor = SimpleNamespace(request_states=self.states)

    async def add_request(self, request_id: str, prompt: int, params: None, **_: Any) -> str:
        await asyncio.sleep(0)
        self.states[f"{request_id}-of-vllm"] = SimpleNamespace(
            external_req_id=request_id, prompt_len=prompt, is_prefilling=True
        )
        return request_id

    @property
    def names(self) -> list[str]:
        return [state.external_req_id for state in self.states.values()]

    def compute(self, name: str) -> None:
        self.states[f"{name}-of-vllm"].is_prefilling = False


@pytest.fixture
def core() -> Any:
    core: Any = Core()
    take_turns(core)
    return core


def ask(core: Any, name: str, tokens: int, *, long: bool = True) -> asyncio.Task[str]:
    async def asking() -> str:
        is_long.set(False)
        mark(long=long)
        added: str = await core.add_request(name, tokens, None, lora_request=None)
        return added

    return asyncio.create_task(asking())


async def test_prompts_of_two_steps_are_in_the_engine_and_the_others_wait(core: Any) -> None:
    several = [ask(core, str(number), 100) for number in range(4)]
    assert await several[1] == "1"
    # Whoever is not long has not to wait, nor is counted.
    assert await ask(core, "short", 1_000, long=False) == "short"
    await asyncio.sleep(0.05)
    assert core.names == ["0", "1", "short"]
    core.compute("0")
    await several[2]
    await asyncio.sleep(0.05)
    assert core.names == ["0", "1", "short", "2"]
    del core.states["1-of-vllm"]
    await several[3]


async def test_each_rank_of_data_parallelism_has_room_of_its_own() -> None:
    core: Any = Core(ranks=2)
    take_turns(core)
    several = [ask(core, str(number), 100) for number in range(5)]
    await several[3]
    await asyncio.sleep(0.05)
    assert core.names == ["0", "1", "2", "3"]
    core.compute("0")
    await several[4]


async def test_one_larger_than_two_steps_is_not_kept_out(core: Any) -> None:
    await asyncio.gather(ask(core, "a", 10), ask(core, "b", 10_000))
    waiting = ask(core, "c", 1)
    await asyncio.sleep(0.05)
    assert core.names == ["a", "b"]
    core.compute("b")
    await waiting


async def test_a_place_is_left_to_short_requests(core: Any) -> None:
    several = [ask(core, str(number), 1) for number in range(8)]
    await asyncio.gather(*several[:7])
    for number in range(7):
        core.compute(str(number))
    await asyncio.sleep(0.05)
    assert len(core.names) == 7
    del core.states["3-of-vllm"]
    await several[7]


async def test_one_that_gives_up_lets_the_next_pass(core: Any) -> None:
    await ask(core, "a", 200)
    gone, next_ = ask(core, "gone", 1), ask(core, "next", 1)
    await asyncio.sleep(0.02)
    gone.cancel()
    core.compute("a")
    await next_
    assert core.names == ["a", "next"]


async def test_nobody_waits_for_a_dead_engine(core: Any) -> None:
    await ask(core, "a", 200)
    waiting = ask(core, "b", 1)
    await asyncio.sleep(0.02)
    core.errored = True
    await waiting
