"""Engines that are set aside for a while, and start again. The cores here are no processes."""

import asyncio
import contextlib

import pytest
from support.engine.cores import LIMIT_S, FakeCore, healing, until

from worker.engine.healing.healer import Healer, Limits
from worker.errors import EngineAside, EngineDead, KilledEngine

ENDED = ["killed", "calls failed", "shut down", "ended"]
# No restart is allowed.
NONE = Limits(restarts=0, hang_s=0)


def busy(*, new: bool = False) -> FakeCore:
    """Return a core that runs a request."""
    core = FakeCore()
    core.add("job", new=new)
    return core


async def held(healer: Healer, inside: asyncio.Event, drain_s: float = LIMIT_S) -> None:
    """Set an engine aside until this is cancelled."""
    async with healer.aside(LIMIT_S, drain_s):
        inside.set()
        await asyncio.Event().wait()


async def ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_nothing_is_left_of_a_core_in_the_block_and_another_one_answers_after_it() -> None:
    first, second = FakeCore(), FakeCore()
    async with healing(first, second, limits=NONE) as (healer, used):
        async with healer.aside(LIMIT_S, LIMIT_S):
            assert (first.happened, used, healer.dead) == (ENDED, [], False)
        assert (used, healer.dead) == ([second], False)


async def test_it_can_be_set_aside_more_often_than_it_may_be_restarted() -> None:
    async with healing(*(FakeCore() for _ in range(4)), limits=NONE) as (healer, used):
        for _ in range(3):
            async with healer.aside(LIMIT_S, LIMIT_S):
                pass
    assert len(used) == 3


async def test_requests_that_run_end_first() -> None:
    first = busy()
    async with healing(first, FakeCore()) as (healer, _):
        inside = asyncio.Event()
        holding = asyncio.create_task(held(healer, inside))
        await asyncio.sleep(0.5)
        assert (first.happened, inside.is_set()) == ([], False)
        first.requests.clear()
        await inside.wait()
        await ended(holding)


async def test_what_runs_for_too_long_is_ended_and_is_no_suspect() -> None:
    first = busy(new=True)
    async with healing(first, FakeCore(), limits=NONE) as (healer, _):
        async with healer.aside(LIMIT_S, 0.2):
            waiting = asyncio.create_task(healer.back("job"))
            await asyncio.sleep(0.2)
            assert not waiting.done()
        await waiting


async def test_a_request_waits_so_long_and_is_told_when_to_come_again() -> None:
    async with healing(FakeCore(), FakeCore()) as (healer, _):
        async with healer.aside(0.2, LIMIT_S):
            for wait in (healer.absence.admit(), healer.back("job")):
                with pytest.raises(EngineAside) as refused:
                    await wait
        await healer.absence.admit()
    error = refused.value.body()["error"]
    assert (error["code"], error["retryable"], error["retry_after"]) == (503, True, 60)
    assert "60 seconds" in error["message"]


async def test_a_crash_meanwhile_is_its_requests_doing_and_counts_as_one() -> None:
    first, last = busy(new=True), FakeCore()
    limits = Limits(restarts=1, hang_s=0)
    async with healing(first, FakeCore(), last, limits=limits) as (healer, used):
        asyncio.get_running_loop().call_later(0.2, first.die)
        async with healer.aside(LIMIT_S, LIMIT_S):
            assert first.happened == ["calls failed", "shut down", "ended"]
        with pytest.raises(KilledEngine):
            await healer.back("job")
        healer.core.kill()
        with pytest.raises(EngineDead):
            await healer.back("other")
    assert last not in used


async def test_a_caller_who_leaves_before_the_requests_have_ended_leaves_the_core_alone() -> None:
    first = busy()
    async with healing(first) as (healer, _):
        holding = asyncio.create_task(held(healer, asyncio.Event()))
        await until(lambda: healer.absence.lasts)
        await ended(holding)
        assert (first.happened, healer.absence.lasts, healer.dead) == ([], False, False)


async def test_a_caller_who_is_cancelled_in_the_block_leaves_when_the_engine_is_back() -> None:
    second = FakeCore()
    async with healing(FakeCore(), second) as (healer, used):
        inside = asyncio.Event()
        holding = asyncio.create_task(held(healer, inside))
        await inside.wait()
        await ended(holding)
        assert (used, healer.dead) == ([second], False)


async def test_a_caller_who_is_cancelled_twice_does_not_keep_the_engine_away() -> None:
    second = FakeCore()
    async with healing(FakeCore(), second) as (healer, used):
        inside = asyncio.Event()
        holding = asyncio.create_task(held(healer, inside))
        await inside.wait()
        holding.cancel()
        await asyncio.sleep(0)
        await ended(holding)
        await until(lambda: used == [second])


async def test_a_second_caller_waits_for_the_first() -> None:
    cores = [FakeCore() for _ in range(3)]
    async with healing(*cores) as (healer, used):
        inside, second_inside = asyncio.Event(), asyncio.Event()
        holding = asyncio.create_task(held(healer, inside))
        await inside.wait()
        following = asyncio.create_task(held(healer, second_inside))
        await asyncio.sleep(0.5)
        assert not second_inside.is_set()
        await ended(holding)
        await second_inside.wait()
        assert [core.happened for core in cores] == [ENDED, ENDED, []]
        await ended(following)
        assert used == cores[1:]


async def test_an_engine_that_is_given_up_can_not_be_set_aside() -> None:
    async with healing(FakeCore(is_dead=True), limits=NONE) as (healer, _):
        with pytest.raises(EngineDead):
            await healer.back("job")
        with pytest.raises(EngineDead):
            async with healer.aside(LIMIT_S, LIMIT_S):
                pytest.fail("it has a block")
        assert healer.dead


async def test_an_engine_that_does_not_start_after_the_block_is_tried_again_and_given_up() -> None:
    broken = RuntimeError("no memory")
    limits = Limits(restarts=1, hang_s=0)
    async with healing(FakeCore(), broken, broken, limits=limits) as (healer, used):
        async with healer.aside(LIMIT_S, LIMIT_S):
            pass
        with pytest.raises(EngineDead):
            await healer.back("job")
    assert used == []
