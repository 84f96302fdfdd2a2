"""Room for the choices of a list's items."""

import asyncio

from support.processes.background import HUNG_S

from worker.routes.lists import Room


async def test_choices_take_room_and_give_it_back() -> None:
    room, held, most = Room(5), 0, 0

    async def item(choices: int) -> None:
        nonlocal held, most
        async with room.taken(choices):
            held += choices
            most = max(most, held)
            await asyncio.sleep(0)
            held -= choices

    await asyncio.gather(*(item(choices) for choices in (2, 3, 1, 5, 4, 1, 2) * 5))
    assert (held, most) == (0, 5)


async def test_an_item_that_needs_more_than_there_is_waits_for_all() -> None:
    room = Room(2)
    async with room.taken(1):
        large = asyncio.create_task(room.taken(10).__aenter__())
        await asyncio.sleep(0.01)
        assert not large.done()
    await large


async def test_an_item_that_is_cancelled_while_it_waits_gives_its_part_back() -> None:
    room = Room(2)
    async with room.taken(1):

        async def enter() -> None:
            async with room.taken(2):
                raise AssertionError("there was no room")

        waiting = asyncio.create_task(enter())
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(HUNG_S), room.taken(2):
        pass
