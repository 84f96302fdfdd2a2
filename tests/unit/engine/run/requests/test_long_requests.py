"""The queue in which long requests wait before they are added to the engine."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from types import SimpleNamespace
from typing import Any

import pytest
from support.processes.background import HUNG_S, settle
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import RepetitionDetectionParams, SamplingParams

from worker.engine.run.requests import long_requests as module
from worker.engine.run.requests.long_requests import (
    is_long,
    mark_if_long,
    reserve_thread_for_short_texts,
)


class Core:
    """A fake core with 100 tokens per step and 8 slots."""

    def __init__(self, ranks: int = 1) -> None:
        self.errored = False
        scheduler = SimpleNamespace(max_num_batched_tokens=100, max_num_seqs=8)
        parallel = SimpleNamespace(data_parallel_size=ranks)
        self.vllm_config = SimpleNamespace(scheduler_config=scheduler, parallel_config=parallel)
        self.states: dict[str, Any] = {}
        self.output_processor = SimpleNamespace(request_states=self.states)
        # Its connection; and the requests and choices that it has received.
        self.engine_core = self
        self.received_ids: list[str] = []

    async def add_request(self, request_id: str, prompt: int, params: Any, **_: Any) -> str:
        await asyncio.sleep(0)
        # Like vLLM, a request of each choice; but only of many, so that others take one slot.
        choices = getattr(params, "n", 1)
        is_one = choices <= module.MANY_CHOICES
        numbers = [""] if is_one else [f"{number}_" for number in range(choices)]
        ids = [f"{number}{request_id}-of-vllm" for number in numbers]
        for id in ids:
            self.states[id] = SimpleNamespace(
                external_req_id=request_id, prompt_len=prompt, is_prefilling=True
            )
        for id in ids:
            await self.engine_core.add_request_async(
                SimpleNamespace(request_id=id, external_req_id=request_id)
            )
        return request_id

    async def add_request_async(self, request: Any) -> None:
        self.received_ids.append(request.request_id)

    async def abort(self, request_id: str) -> None:
        for id in [id for id, state in self.states.items() if state.external_req_id == request_id]:
            del self.states[id]

    def submit(
        self, name: str, tokens: int, *, long: bool = True, params: Any = None
    ) -> asyncio.Task[str]:
        async def run() -> str:
            is_long.set(False)
            mark_if_long(long=long)
            added: str = await self.add_request(name, tokens, params, lora_request=None)
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


async def submit_and_finish_prefill(core: Any, names: str, **options: Any) -> None:
    """Submit requests, one for each letter; those that the engine gets have their first token."""
    tasks = [core.submit(name, 1, **options) for name in names]
    for _ in tasks:
        await core.request_ids()
        for state in core.states.values():
            state.is_prefilling = False


@pytest.mark.parametrize(
    ("params", "count"),
    [
        # 512 log probabilities in a step, and as many requests as it takes to reach them.
        (SamplingParams(logprobs=127, max_tokens=16), 4),
        (SamplingParams(logprobs=7, n=32, max_tokens=16), 2),
        (SamplingParams(logprobs=1, logprob_token_ids=[*range(128)], max_tokens=16), 4),
        (SamplingParams(logprob_token_ids=[*range(127)], n=4, max_tokens=16), 1),
        # One step, as in a beam search; or none.
        (SamplingParams(logprobs=127, max_tokens=1), 7),
        (SamplingParams(max_tokens=16), 7),
        (PoolingParams(), 7),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_long_requests_share_the_log_probabilities_of_a_step(
    params: Any, count: int, core: Any
) -> None:
    await submit_and_finish_prefill(core, "abcdefgh", params=params)
    names = await core.request_ids()
    assert names == [*"abcdefgh"[:count]]
    # A short request doesn't wait.
    few = SamplingParams(logprobs=1)
    assert await core.submit("short", 1, long=False, params=few) == "short"
    del core.states["a-of-vllm"]
    assert await core.request_ids() == [*names[1:], "short", "abcdefgh"[count]]


async def test_requests_with_many_alternatives_for_a_token_are_long(core: Any) -> None:
    many = SamplingParams(logprob_token_ids=[*range(63)], n=4)
    few = SamplingParams(logprobs=32, n=31)
    await submit_and_finish_prefill(core, "abcd", long=False, params=many)
    await submit_and_finish_prefill(core, "ef", long=False, params=few)
    assert await core.request_ids() == [*"abef"]


# One request for many choices:


@pytest.mark.parametrize("long", [False, True])
async def test_many_choices_leave_a_slot_to_other_requests(long: bool, core: Any) -> None:
    task = core.submit("many", 1, params=SamplingParams(n=40), long=long)
    ids = [f"{number}_many-of-vllm" for number in range(40)]
    for finished in range(33):
        await settle()
        # One of eight slots is reserved.
        assert core.received_ids == ids[: finished + 7]
        assert await core.submit(f"short-{finished}", 1, long=False) == f"short-{finished}"
        core.received_ids.remove(f"short-{finished}-of-vllm")
        del core.states[ids[finished]]
    assert await task == "many"


@pytest.mark.parametrize("long", [False, True])
async def test_a_cancelled_request_for_many_choices_leaves_none_in_the_engine(
    long: bool, core: Any
) -> None:
    tasks = [
        core.submit(name, 1, params=SamplingParams(n=40), long=long) for name in ("gone", "next")
    ]
    await settle()
    tasks[0].cancel()
    await settle()
    assert {state.external_req_id for state in core.states.values()} == {"next"}
    assert "6_next-of-vllm" in core.received_ids


async def test_long_requests_and_many_choices_share_the_slots(core: Any) -> None:
    many = core.submit("many", 1, params=SamplingParams(n=33), long=False)
    await settle()
    long = core.submit("long", 1)
    await settle()
    assert len(core.received_ids) == 7
    for id in core.received_ids[:]:
        del core.states[id]
    await settle()
    assert [core.received_ids[7:9], long.done()] == [["7_many-of-vllm", "8_many-of-vllm"], False]
    core.errored = True
    assert [await many, await long] == ["many", "long"]


def detection(largest: int, count: int, **options: Any) -> SamplingParams:
    repetitions = RepetitionDetectionParams(max_pattern_size=largest, min_count=count)
    return SamplingParams(repetition_detection=repetitions, **options)


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize(
    ("params", "count"),
    [
        # 65,280 comparisons for each choice, at most 1,048,576 in all; a single one may have more.
        (detection(255, 3, n=4), 4),
        (detection(255, 3, n=7), 2),
        (detection(256, 256), 1),
        # 4,096 comparisons take no longer than the rest of a step.
        (detection(52, 3, n=32), 6),
        (detection(20, 3, n=32), 6),
        (detection(0, 2, n=32), 6),
        (SamplingParams(), 6),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_costly_requests_share_the_comparisons_of_a_step(
    params: SamplingParams, count: int, long: bool, core: Any
) -> None:
    await submit_and_finish_prefill(core, "abcdef", long=long, params=params)
    names = await core.request_ids()
    assert names == [*"abcdef"[:count]]
    # Requests that compare little don't wait.
    assert await core.submit("other", 1, params=detection(20, 3, n=32)) == "other"
    if count < 6:
        del core.states["a-of-vllm"]
        assert await core.request_ids() == [*names[1:], "other", "abcdef"[count]]


async def test_a_cancelled_costly_request_does_not_block_the_next_one(core: Any) -> None:
    costly = detection(256, 17)
    _, cancelled, _ = (core.submit(name, 1, params=costly) for name in ("a", "gone", "next"))
    assert await core.request_ids() == ["a"]
    cancelled.cancel()
    del core.states["a-of-vllm"]
    assert await core.request_ids() == ["next"]


# Threads that render texts


def test_long_requests_wait_for_each_other_and_leave_a_thread_to_others() -> None:
    executor = ThreadPoolExecutor(2)
    reserve_thread_for_short_texts(executor, 2)
    go_on, running = threading.Event(), threading.Semaphore(0)

    def work() -> bool:
        running.release()
        return go_on.wait(HUNG_S)

    def submit_long(function: Any, *args: Any) -> Any:
        mark_if_long(long=True)
        mark_if_long(long=False)
        return executor.submit(function, *args)

    several = [Context().run(submit_long, work) for _ in range(3)]
    assert running.acquire(timeout=HUNG_S)
    # While one long request runs, the other long ones wait, and a short one is served.
    assert Context().run(executor.submit, str, 5).result(HUNG_S) == "5"
    assert not running.acquire(blocking=False)
    go_on.set()
    assert [future.result(HUNG_S) for future in several] == [True] * 3
    with pytest.raises(ZeroDivisionError):
        Context().run(submit_long, divmod, 1, 0).result(HUNG_S)


def test_with_a_single_thread_others_wait_for_one_long_request_only() -> None:
    executor = ThreadPoolExecutor(1)
    reserve_thread_for_short_texts(executor, 1)
    order: list[str] = []
    go_on, running = threading.Event(), threading.Semaphore(0)

    def work(name: str) -> None:
        running.release()
        go_on.wait(HUNG_S)
        order.append(name)

    def submit_long(name: str) -> Any:
        mark_if_long(long=True)
        return executor.submit(work, name)

    several = [Context().run(submit_long, name) for name in ("first", "second", "third")]
    assert running.acquire(timeout=HUNG_S)
    short = Context().run(executor.submit, work, "short")
    go_on.set()
    for future in (*several, short):
        future.result(HUNG_S)
    assert order == ["first", "short", "second", "third"]
