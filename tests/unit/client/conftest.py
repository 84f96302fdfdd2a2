"""An endpoint whose workers are a function of each module or folder: its fixture `answer`."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.scripted_endpoint import ACCOUNT, WITH_KEY, Answer, answering, scripted_endpoint

from emulator import Emulator


@pytest.fixture
async def emulator(answer: Answer) -> AsyncIterator[Emulator]:
    async with scripted_endpoint(answering(answer), WITH_KEY) as running:
        yield running


@pytest.fixture
def deployed(emulator: Emulator) -> dict[str, Any]:
    """Return the arguments that name the endpoint to a transport."""
    return {"endpoint_id": "local", "api_key": ACCOUNT, "base_url": emulator.api_url}
