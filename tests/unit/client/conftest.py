"""An endpoint whose workers are a function of each module or folder: its fixture `answer`."""

import time
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from support.processes.background import HUNG_S
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


@pytest.fixture
def let_time_pass(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what ends the patience of whoever waits for a job, for ``HUNG_S`` at most."""
    passed_s = 0.0

    def call() -> None:
        nonlocal passed_s
        passed_s += HUNG_S

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed_s)
    monkeypatch.setattr("llm_worker_client.jobs.time", clock)
    return call
