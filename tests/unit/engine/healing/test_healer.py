"""Deaths and hangs of cores, and what takes their place. The cores here are no processes."""

import asyncio
import logging

import pytest
from support.engine.cores import LIMITS, FakeCore, healing, until

from worker.engine.healing.healer import Limits
from worker.errors import EngineDead, KilledEngine, StartFailed

HANG_S = 0.5
# With a look for hangs.
WATCHED = Limits(restarts=2, hang_s=HANG_S)


async def test_a_core_that_died_is_replaced_and_what_is_left_of_it_removed() -> None:
    first, second = FakeCore(), FakeCore()
    async with healing(first, second) as (healer, used):
        first.die()
        await until(lambda: not healer.dead)
    assert used == [second]
    assert healer.core is second  # type: ignore[comparison-overlap]  # a fake
    assert first.happened == ["calls failed", "shut down", "ended"]


async def test_the_requests_of_a_dead_core_fail_before_it_is_shut_down() -> None:
    """vLLM passes a death on to them in a task that its shutdown cancels."""
    passed_on = asyncio.Event()
    handler = asyncio.create_task(passed_on.wait())
    first = FakeCore(handler=handler)
    handler.add_done_callback(lambda _: first.happened.append("failed"))
    async with healing(first, FakeCore()) as (healer, _):
        first.die()
        asyncio.get_running_loop().call_later(0.5, passed_on.set)
        await until(lambda: not healer.dead)
    assert first.happened == ["failed", "calls failed", "shut down", "ended"]


async def test_it_is_given_up_after_so_many_restarts_and_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cores = [FakeCore(is_dead=True) for _ in range(3)]
    async with healing(*cores) as (healer, used):
        with pytest.raises(EngineDead):
            await healer.back("job")
    assert used == cores[1:]
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert [line.rpartition(": ")[2] for line in lines] == [
        "it is started again",
        "it is started again",
        "it is not started again",
    ]
    assert all("ValueError: broken" in line for line in lines)


async def test_without_restarts_it_is_given_up_at_once() -> None:
    async with healing(FakeCore(is_dead=True), limits=Limits(0, 0)) as (healer, used):
        with pytest.raises(EngineDead):
            await healer.back("job")
    assert used == []


@pytest.mark.parametrize("failure", [RuntimeError("no memory"), StartFailed("EIO: config.json")])
async def test_a_start_that_fails_counts_as_a_restart(failure: Exception) -> None:
    last = FakeCore()
    async with healing(FakeCore(is_dead=True), failure, last) as (healer, used):
        await healer.back("job")
    assert used == [last]


async def test_a_new_core_that_nothing_can_be_built_on_is_removed() -> None:
    unusable, last = FakeCore(unusable=True), FakeCore()
    async with healing(FakeCore(is_dead=True), unusable, last) as (healer, used):
        await healer.back("job")
    assert unusable.happened == ["calls failed", "shut down", "ended"]
    assert used == [last]


async def test_only_one_newcomer_of_a_crash_is_refused_and_the_others_go_on() -> None:
    first = FakeCore()
    first.add("chatcmpl-killer", new=True)
    first.add("chatcmpl-other", new=False)
    async with healing(first, FakeCore()) as (healer, _):
        first.die()
        with pytest.raises(KilledEngine):
            await healer.back("killer")
        await healer.back("other")


async def test_no_request_is_to_blame_for_a_core_that_was_ended_from_outside() -> None:
    first = FakeCore(crashes=False)
    first.add("only", new=True)
    async with healing(first, FakeCore()) as (healer, _):
        first.die()
        await healer.back("only")


async def test_several_newcomers_begin_again_one_after_the_other() -> None:
    first, second = FakeCore(), FakeCore()
    first.add("a", new=True)
    first.add("b", new=True)
    async with healing(first, second) as (healer, _):
        first.die()
        await healer.back("a")
        second.add("a", new=True)
        waits = asyncio.create_task(healer.back("b"))
        assert not (await asyncio.wait([waits], timeout=1))[0]
        second.requests[0].is_prefilling = False
        await waits


async def test_the_only_request_of_two_crashes_in_a_row_is_not_run_a_third_time() -> None:
    cores = [FakeCore() for _ in range(3)]
    for core in cores[:2]:
        core.add("job", new=False)
        core.add(f"other-{id(core)}", new=False)
    async with healing(*cores) as (healer, _):
        cores[0].die()
        await healer.back("job")
        cores[1].die()
        with pytest.raises(KilledEngine):
            await healer.back("job")


@pytest.mark.parametrize(
    "first",
    [
        FakeCore(),
        FakeCore(share=1),
        # What its processes use that wait.
        FakeCore(share=0.15, processes=8),
        FakeCore(stopped=True),
        FakeCore(stopped=True, builds=True),
    ],
)
async def test_a_core_that_hangs_is_ended_and_replaced(first: FakeCore) -> None:
    first.add("job", new=False)
    async with healing(first, FakeCore(), limits=WATCHED) as (_, used):
        await until(lambda: used)
    assert first.happened == ["killed", "calls failed", "shut down", "ended"]


async def left_alone(core: FakeCore, limits: Limits = WATCHED) -> bool:
    """Return whether a silent core was left alone."""
    async with healing(core, limits=limits):
        await asyncio.sleep(max(3 * HANG_S, 1.5 * limits.hang_s))
    return not core.happened


async def test_a_core_that_gets_little_of_a_busy_machine_does_not_hang() -> None:
    core = FakeCore(share=0.1)
    core.add("job", new=False)
    assert await left_alone(core, Limits(restarts=2, hang_s=4 * HANG_S))


async def test_a_core_that_builds_code_does_not_hang() -> None:
    core = FakeCore(builds=True)
    core.add("job", new=False)
    assert await left_alone(core)


async def test_a_core_that_computes_a_long_prompt_does_not_hang() -> None:
    core = FakeCore(prompt_limit=10_000)
    core.add("job", new=True, prompt_len=10_000)
    assert await left_alone(core)


async def test_an_idle_core_does_not_hang() -> None:
    assert await left_alone(FakeCore())


async def test_the_watch_for_hangs_can_be_turned_off() -> None:
    core = FakeCore(stopped=True)
    core.add("job", new=False)
    assert await left_alone(core, LIMITS)
