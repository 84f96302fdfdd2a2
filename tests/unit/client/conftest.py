"""An emulated endpoint whose workers are the fixture `answer` of each module or folder."""

import time
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from support.processes.background import HUNG_S
from support.scripted_endpoint import (
    ACCOUNT,
    WITH_KEY,
    OutputsFunction,
    make_handler,
    scripted_endpoint,
)

from emulator import Emulator


@pytest.fixture
async def emulator(answer: OutputsFunction) -> AsyncIterator[Emulator]:
    async with scripted_endpoint(make_handler(answer), WITH_KEY) as running:
        yield running


@pytest.fixture
def endpoint_args(emulator: Emulator) -> dict[str, Any]:
    """Return the arguments that name the endpoint to a transport or to `configure`."""
    return {"endpoint_id": "local", "api_key": ACCOUNT, "base_url": emulator.api_url}


@pytest.fixture
def let_time_pass(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that advances the clock of callers that wait for a job by ``HUNG_S``."""
    passed_s = 0.0

    def call() -> None:
        nonlocal passed_s
        passed_s += HUNG_S

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed_s)
    monkeypatch.setattr("llm_worker_client.jobs.time", clock)
    return call
