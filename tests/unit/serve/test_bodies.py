"""How much all bodies that are being read may hold together."""

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from worker.errors import EngineBusy
from worker.serve.bodies import MOST_HELD, Bodies, Refused

LARGEST = 100


def request(size: int, whole: asyncio.Event | None = None) -> Request:
    """Return a request whose body's last byte comes when it may."""
    parts = [b"a" * (size - 1), b"a"]

    async def receive() -> dict[str, Any]:
        if len(parts) == 1 and whole:
            await whole.wait()
        part = parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


async def test_a_body_may_be_as_large_as_the_largest() -> None:
    bodies = Bodies(LARGEST, patience_s=60)
    assert await bodies.read(request(LARGEST)) == b"a" * LARGEST
    with pytest.raises(Refused) as caught:
        await bodies.read(request(LARGEST + 1))
    assert caught.value.status == 413


async def test_all_bodies_together_are_limited_until_some_are_whole() -> None:
    bodies, whole = Bodies(LARGEST, patience_s=60), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for _ in range(MOST_HELD):
            group.create_task(bodies.read(request(LARGEST, whole)))
        # Each reads its first part in a few turns of the loop.
        for _ in range(100):
            await asyncio.sleep(0)
        with pytest.raises(EngineBusy):
            await bodies.read(request(LARGEST))
        whole.set()
    # Those that were refused are not held either.
    for _ in range(2 * MOST_HELD):
        await bodies.read(request(LARGEST))
