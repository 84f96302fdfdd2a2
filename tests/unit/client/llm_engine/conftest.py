"""An emulated endpoint for LLM Engine's classes; it records jobs and returns scripted answers."""

from collections.abc import AsyncIterator

import pytest
from support.scripted_endpoint import ACCOUNT, OutputsFunction, Script

from emulator import Emulator
from llm_worker_client import configure


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def answer(script: Script) -> OutputsFunction:
    return script.answer


@pytest.fixture
async def configure_classes(emulator: Emulator) -> AsyncIterator[None]:
    """Configure the classes to call the endpoint."""
    configure("local", ACCOUNT, emulator.api_url)
    yield
    configure()
