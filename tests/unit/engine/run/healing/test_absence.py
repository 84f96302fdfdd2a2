"""Engines that are set aside for a while, and start again. The cores here are no processes."""

import asyncio
import contextlib

import pytest
from support.engine.cores import CLOCK, FakeCore, healing, settle
from support.processes.background import HUNG_S, eventually

from worker.engine.run.healing.healer import Healer
from worker.errors import EngineAside, EngineDead, KilledEngine

ENDED = ["killed", "removed"]


class Caller:
    """Sets an engine aside until it is cancelled."""

    def __init__(self, healer: Healer) -> None:
        self.inside = asyncio.Event()
        self.task = asyncio.create_task(self._hold(healer))

    async def _hold(self, healer: Healer) -> None:
        async with healer.aside(HUNG_S, HUNG_S):
            self.inside.set()
            await asyncio.Event().wait()

    async def leave(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


async def test_nothing_is_left_of_a_core_in_the_block_and_another_one_answers_after_it() -> None:
    first, second = FakeCore(), FakeCore()
    async with healing(first, second, restarts=0) as (healer, used):
        async with healer.aside(HUNG_S, HUNG_S):
            assert (first.happened, used, healer.dead) == (ENDED, [], False)
        assert (used, healer.dead) == ([second], False)


async def test_requests_that_run_end_first() -> None:
    first = FakeCore().add("job")
    async with healing(first, FakeCore()) as (healer, _):
        caller = Caller(healer)
        await CLOCK.pass_by(5)
        assert (first.happened, caller.inside.is_set()) == ([], False)
        first.requests.clear()
        await caller.inside.wait()
        await caller.leave()


async def test_what_runs_for_too_long_is_ended_and_is_no_suspect() -> None:
    first = FakeCore().add("job", new=True)
    async with healing(first, FakeCore(), restarts=0) as (healer, _):
        async with healer.aside(HUNG_S, 0.2):
            waiting = asyncio.create_task(healer.back("job"))
            await settle()
            assert not waiting.done()
        await waiting


async def test_a_request_waits_so_long_and_is_refused_with_when_to_come_again() -> None:
    async with healing(FakeCore(), FakeCore()) as (healer, _):
        async with healer.aside(0.05, HUNG_S):
            for wait in (healer.absence.admit(), healer.back("job")):
                with pytest.raises(EngineAside) as refused:
                    await wait
        await healer.absence.admit()
    error = refused.value.body()["error"]
    assert (error["code"], error["retryable"], error["retry_after"]) == (503, True, 60)
    assert "60 seconds" in error["message"]


async def test_a_crash_meanwhile_is_its_requests_doing_and_counts_as_one() -> None:
    first, last = FakeCore().add("job", new=True), FakeCore()
    async with healing(first, FakeCore(), last, restarts=1) as (healer, used):
        asyncio.get_running_loop().call_later(0.05, first.die)
        async with healer.aside(HUNG_S, HUNG_S):
            assert first.happened == ENDED[1:]
        with pytest.raises(KilledEngine):
            await healer.back("job")
        healer.core.kill()
        with pytest.raises(EngineDead):
            await healer.back("other")
    assert last not in used


async def test_a_caller_who_leaves_before_the_requests_have_ended_leaves_the_core_alone() -> None:
    first = FakeCore().add("job")
    async with healing(first) as (healer, _):
        caller = Caller(healer)
        await eventually(lambda: healer.absence.lasts)
        await caller.leave()
        assert (first.happened, healer.absence.lasts, healer.dead) == ([], False, False)


async def test_a_caller_who_is_cancelled_even_twice_does_not_keep_the_engine_away() -> None:
    second, third = FakeCore(), FakeCore()
    async with healing(FakeCore(), second, third) as (healer, used):
        caller = Caller(healer)
        await caller.inside.wait()
        await caller.leave()
        # It leaves when the engine is back.
        assert (used, healer.dead) == ([second], False)
        caller = Caller(healer)
        await caller.inside.wait()
        caller.task.cancel()
        await asyncio.sleep(0)
        await caller.leave()
        await eventually(lambda: used == [second, third])


async def test_a_second_caller_waits_for_the_first() -> None:
    cores = [FakeCore() for _ in range(3)]
    async with healing(*cores) as (healer, used):
        first = Caller(healer)
        await first.inside.wait()
        second = Caller(healer)
        await settle()
        assert not second.inside.is_set()
        await first.leave()
        await second.inside.wait()
        assert [core.happened for core in cores] == [ENDED, ENDED, []]
        await second.leave()
        assert used == cores[1:]


async def test_an_engine_that_is_given_up_can_not_be_set_aside() -> None:
    async with healing(FakeCore(is_dead=True), restarts=0) as (healer, _):
        with pytest.raises(EngineDead):
            await healer.back("job")
        with pytest.raises(EngineDead):
            async with healer.aside(HUNG_S, HUNG_S):
                pytest.fail("it has a block")
        assert healer.dead


async def test_an_engine_that_does_not_start_after_the_block_is_tried_again_and_given_up() -> None:
    broken = RuntimeError("no memory")
    async with healing(FakeCore(), broken, broken, restarts=1) as (healer, used):
        async with healer.aside(HUNG_S, HUNG_S):
            pass
        with pytest.raises(EngineDead):
            await healer.back("job")
    assert used == []
