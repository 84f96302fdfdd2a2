"""An endpoint for LLM Engine's classes: it keeps what jobs hold, and answers what a test says."""

from collections.abc import AsyncIterator

import pytest
from support.deployed import ACCOUNT, Scripted, deployed

from emulator import Emulator
from llm_worker_client import configure


@pytest.fixture
def scripted() -> Scripted:
    return Scripted()


@pytest.fixture
async def emulator(scripted: Scripted) -> AsyncIterator[Emulator]:
    """Run the endpoint, which the classes call."""
    async with deployed(scripted.answer) as running:
        configure("local", ACCOUNT, running.api_url)
        yield running
        configure()


@pytest.fixture
def endpoint(emulator: Emulator, scripted: Scripted) -> Scripted:
    return scripted
