"""An endpoint for LLM Engine's classes: it keeps what jobs hold, and answers what a test says."""

from collections.abc import AsyncIterator

import pytest
from support.scripted_endpoint import ACCOUNT, Answer, Script

from emulator import Emulator
from llm_worker_client import configure


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def answer(script: Script) -> Answer:
    return script.answer


@pytest.fixture
async def configured(emulator: Emulator) -> AsyncIterator[None]:
    """Name the endpoint to the classes."""
    configure("local", ACCOUNT, emulator.api_url)
    yield
    configure()
