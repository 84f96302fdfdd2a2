"""Faults that concern a share of the calls."""

from support.processes.emulator_client import emulator_client

from emulator import Action, Call, Fault
from emulator.faults import Faults


async def chunk_statuses(seed: int, calls: int | None = None) -> list[int]:
    """Return the answers to 100 chunks of which a fault meets 30%."""
    async with emulator_client(seed=seed) as client:
        job = await client.start()
        fault = Fault(on=Call.STREAM, do=Action.STATUS, share=0.3, calls=calls)
        client.emulator.faults.add(fault)
        return [(await client.post_chunk(job, "a"))[0] for _ in range(100)]


async def test_a_fault_for_a_share_of_the_calls_meets_about_so_many_and_others_work() -> None:
    statuses = await chunk_statuses(seed=0)
    assert set(statuses) == {200, 500}
    assert 15 < statuses.count(500) < 45


async def test_the_calls_that_a_fault_meets_follow_from_the_seed() -> None:
    first = await chunk_statuses(seed=1)
    assert await chunk_statuses(seed=1) == first
    assert await chunk_statuses(seed=2) != first


async def test_only_the_calls_that_a_fault_has_met_count() -> None:
    assert (await chunk_statuses(seed=0, calls=7)).count(500) == 7


def drawn(faults: Faults, call: Call) -> list[bool]:
    return [faults.trigger(call, Action.RESET) is not None for _ in range(50)]


def test_what_a_fault_meets_does_not_depend_on_other_calls() -> None:
    on_takes, on_streams = (
        Fault(on=call, do=Action.RESET, share=0.5) for call in (Call.TAKE, Call.STREAM)
    )
    alone, mixed = Faults([on_takes, on_streams]), Faults([on_takes, on_streams])
    takes = drawn(alone, Call.TAKE)
    streams = drawn(mixed, Call.STREAM)
    assert drawn(mixed, Call.TAKE) == takes
    assert streams != takes
