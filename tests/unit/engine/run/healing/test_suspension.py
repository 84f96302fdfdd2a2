"""Suspensions of engines, with fake cores instead of processes."""

import asyncio
import contextlib

import pytest
from support.engine.cores import CLOCK, FakeCore, run_healer, settle
from support.processes.background import HUNG_S, poll_until

from worker.engine.run.healing.healer import Healer
from worker.errors import EngineDead, EngineSuspended, RequestKilledEngine

REMOVAL = ["killed", "removed"]


class Caller:
    """A caller that suspends an engine until it is cancelled."""

    def __init__(self, healer: Healer) -> None:
        self.suspended = asyncio.Event()
        self.task = asyncio.create_task(self._suspend(healer))

    async def _suspend(self, healer: Healer) -> None:
        async with healer.suspend(HUNG_S, HUNG_S):
            self.suspended.set()
            await asyncio.Event().wait()

    async def cancel(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


async def test_the_core_is_removed_during_a_suspension_and_replaced_after_it() -> None:
    first, second = FakeCore(), FakeCore()
    async with run_healer(first, second, restarts=0) as (healer, used):
        async with healer.suspend(HUNG_S, HUNG_S):
            assert (first.calls, used, healer.is_dead) == (REMOVAL, [], False)
        assert (used, healer.is_dead) == ([second], False)


async def test_a_suspension_waits_for_running_requests() -> None:
    first = FakeCore().add("job")
    async with run_healer(first, FakeCore()) as (healer, _):
        caller = Caller(healer)
        await CLOCK.wait(5)
        assert (first.calls, caller.suspended.is_set()) == ([], False)
        first.unfinished_requests.clear()
        await caller.suspended.wait()
        await caller.cancel()


async def test_a_request_that_runs_too_long_is_ended_without_being_a_suspect() -> None:
    first = FakeCore().add("job", new=True)
    async with run_healer(first, FakeCore(), restarts=0) as (healer, _):
        async with healer.suspend(HUNG_S, 0.2):
            waiting = asyncio.create_task(healer.wait_for_recovery("job"))
            await settle()
            assert not waiting.done()
        await waiting


async def test_a_request_waits_up_to_the_limit_and_is_refused_with_a_retry_time() -> None:
    async with run_healer(FakeCore(), FakeCore()) as (healer, _):
        async with healer.suspend(0.05, HUNG_S):
            for wait in (healer.suspension.wait_until_resumed(), healer.wait_for_recovery("job")):
                with pytest.raises(EngineSuspended) as refused:
                    await wait
        await healer.suspension.wait_until_resumed()
    error = refused.value.body()["error"]
    assert (error["code"], error["retryable"], error["retry_after"]) == (503, True, 60)
    assert "60 seconds" in error["message"]


async def test_a_crash_before_the_suspension_is_blamed_on_its_request_and_counts_as_a_restart() -> (
    None
):
    first, last = FakeCore().add("job", new=True), FakeCore()
    async with run_healer(first, FakeCore(), last, restarts=1) as (healer, used):
        asyncio.get_running_loop().call_later(0.05, first.die)
        async with healer.suspend(HUNG_S, HUNG_S):
            assert first.calls == REMOVAL[1:]
        with pytest.raises(RequestKilledEngine):
            await healer.wait_for_recovery("job")
        healer.core.kill()
        with pytest.raises(EngineDead):
            await healer.wait_for_recovery("other")
    assert last not in used


async def test_a_caller_that_leaves_while_requests_run_does_not_stop_the_core() -> None:
    first = FakeCore().add("job")
    async with run_healer(first) as (healer, _):
        caller = Caller(healer)
        await poll_until(lambda: healer.suspension.is_active)
        await caller.cancel()
        assert (first.calls, healer.suspension.is_active, healer.is_dead) == ([], False, False)


async def test_the_engine_returns_after_its_caller_is_cancelled_even_twice() -> None:
    second, third = FakeCore(), FakeCore()
    async with run_healer(FakeCore(), second, third) as (healer, used):
        caller = Caller(healer)
        await caller.suspended.wait()
        await caller.cancel()
        # The cancelled caller has waited until the engine is back.
        assert (used, healer.is_dead) == ([second], False)
        caller = Caller(healer)
        await caller.suspended.wait()
        caller.task.cancel()
        await asyncio.sleep(0)
        await caller.cancel()
        await poll_until(lambda: used == [second, third])


async def test_a_second_caller_waits_for_the_first() -> None:
    cores = [FakeCore() for _ in range(3)]
    async with run_healer(*cores) as (healer, used):
        first = Caller(healer)
        await first.suspended.wait()
        second = Caller(healer)
        await settle()
        assert not second.suspended.is_set()
        await first.cancel()
        await second.suspended.wait()
        assert [core.calls for core in cores] == [REMOVAL, REMOVAL, []]
        await second.cancel()
        assert used == cores[1:]


async def test_a_dead_engine_can_not_be_suspended() -> None:
    async with run_healer(FakeCore(is_dead=True), restarts=0) as (healer, _):
        with pytest.raises(EngineDead):
            await healer.wait_for_recovery("job")
        with pytest.raises(EngineDead):
            async with healer.suspend(HUNG_S, HUNG_S):
                pytest.fail("it has a block")
        assert healer.is_dead


async def test_an_engine_that_fails_to_start_after_a_suspension_is_restarted_up_to_the_limit() -> (
    None
):
    broken = RuntimeError("no memory")
    async with run_healer(FakeCore(), broken, broken, restarts=1) as (healer, used):
        async with healer.suspend(HUNG_S, HUNG_S):
            pass
        with pytest.raises(EngineDead):
            await healer.wait_for_recovery("job")
    assert used == []
