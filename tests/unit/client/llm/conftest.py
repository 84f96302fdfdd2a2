"""An endpoint for `LLM`, whose workers are scripted."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from support.deployed import ACCOUNT, deployed
from unit.client.llm.scripted import Worker

from emulator import Emulator
from llm_worker_client import LLM
from llm_worker_client.llm import RequestOutput

Call = Callable[..., Awaitable[list[RequestOutput]]]


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
async def emulator(worker: Worker) -> AsyncIterator[Emulator]:
    async with deployed(worker.answer) as running:
        yield running


@pytest.fixture
def llm(emulator: Emulator) -> Iterator[LLM]:
    with LLM("local", api_key=ACCOUNT, base_url=emulator.api_url) as made:
        yield made


@pytest.fixture
def generate(llm: LLM) -> Call:
    """Return ``LLM.generate``, for tests on the loop of their endpoint."""

    async def call(
        prompts: Any = None, sampling_params: Any = None, **named: Any
    ) -> list[RequestOutput]:
        named = {**named, "use_tqdm": False}
        return await asyncio.to_thread(llm.generate, prompts, sampling_params, **named)

    return call
