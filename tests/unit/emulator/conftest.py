"""An emulator, and what meets it: callers, workers, webhooks."""

from collections.abc import AsyncIterator

import aiohttp
import pytest
from support.processes.emulator_peer import Peer, emulator_peer


@pytest.fixture
async def peer(request: pytest.FixtureRequest) -> AsyncIterator[Peer]:
    """The other side of an emulator, which has the options that ``with_options`` says."""
    async with emulator_peer(**getattr(request, "param", {})) as running:
        yield running


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session
