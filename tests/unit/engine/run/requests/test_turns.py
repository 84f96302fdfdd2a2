"""How long requests wait for each other before the engine has them."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from support.engine.cores import settle

from worker.engine.run.requests import turns
from worker.engine.run.requests.texts import is_long, mark


class Core:
    """Takes requests; a step has 100 tokens, of 8 places."""

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

    def ask(self, name: str, tokens: int, *, long: bool = True) -> asyncio.Task[str]:
        async def asking() -> str:
            is_long.set(False)
            mark(long=long)
            added: str = await self.add_request(name, tokens, None, lora_request=None)
            return added

        return asyncio.create_task(asking())

    def compute(self, name: str) -> None:
        self.states[f"{name}-of-vllm"].is_prefilling = False

    async def has(self) -> list[str]:
        """Return the requests that are in it when everybody else waits."""
        await settle()
        return [state.external_req_id for state in self.states.values()]


@pytest.fixture
def core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A core of so many ranks; those who wait look at it all the time."""
    monkeypatch.setattr(turns, "LOOKS_S", 0)
    core: Any = Core(getattr(request, "param", 1))
    turns.Turns(core)
    return core


async def test_prompts_of_two_steps_are_in_the_engine_and_the_others_wait(core: Any) -> None:
    several = [core.ask(str(number), 100) for number in range(4)]
    assert await several[1] == "1"
    # Whoever is not long has not to wait, nor is counted.
    assert await core.ask("short", 1_000, long=False) == "short"
    assert await core.has() == ["0", "1", "short"]
    core.compute("0")
    assert await core.has() == ["0", "1", "short", "2"]
    del core.states["1-of-vllm"]
    assert await several[3] == "3"


@pytest.mark.parametrize("core", [2], indirect=True)
async def test_each_rank_of_data_parallelism_has_room_of_its_own(core: Any) -> None:
    several = [core.ask(str(number), 100) for number in range(5)]
    assert await core.has() == ["0", "1", "2", "3"]
    core.compute("0")
    assert await several[4] == "4"


async def test_one_larger_than_two_steps_is_not_kept_out(core: Any) -> None:
    tasks = [core.ask(name, tokens) for name, tokens in (("a", 10), ("b", 10_000), ("c", 1))]
    assert await core.has() == ["a", "b"]
    core.compute("b")
    assert await tasks[2] == "c"


async def test_a_place_is_left_to_short_requests(core: Any) -> None:
    several = [core.ask(str(number), 1) for number in range(8)]
    await asyncio.gather(*several[:7])
    for number in range(7):
        core.compute(str(number))
    assert len(await core.has()) == 7
    del core.states["3-of-vllm"]
    assert await several[7] == "7"


async def test_one_that_gives_up_lets_the_next_pass(core: Any) -> None:
    _, gone, _ = core.ask("a", 200), core.ask("gone", 1), core.ask("next", 1)
    assert await core.has() == ["a"]
    gone.cancel()
    core.compute("a")
    assert await core.has() == ["a", "next"]


async def test_nobody_waits_for_a_dead_engine(core: Any) -> None:
    _, waiting = core.ask("a", 200), core.ask("b", 1)
    assert await core.has() == ["a"]
    core.errored = True
    assert await waiting == "b"
