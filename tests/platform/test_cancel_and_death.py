"""What a cancel frees in the engine, and what an engine's death leaves."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from support.engine.requests import ENDLESS
from support.processes.background import HUNG_S
from support.processes.emulated_endpoint import EmulatedEndpoint, EndpointFactory

from emulator import Job, Status
from emulator.faults import slow_link

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGES = [{"role": "user", "content": "Hi"}]
JOBS = [{"prompt": "Hi", "sampling_params": ENDLESS, "stream": stream} for stream in (False, True)]
JOBS += [
    {
        "openai_route": "/v1/chat/completions",
        "openai_input": {"messages": MESSAGES, **ENDLESS, "stream": stream},
    }
    for stream in (False, True)
]
RUNNING = "vllm:num_requests_running"
ENDED_BY_LENGTH = 'finished_reason="length"'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def endpoint(started_endpoint: EndpointFactory) -> AsyncIterator[EmulatedEndpoint]:
    async with started_endpoint() as running:
        yield running


async def count(endpoint: EmulatedEndpoint, metric: str) -> float:
    """Return a metric of vLLM's."""
    lines = (await endpoint.run({"openai_route": "/metrics"})).output[0].splitlines()
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in lines
        if metric in line and not line.startswith("#")
    )


async def until_generating(endpoint: EmulatedEndpoint) -> None:
    """Wait until the engine works on all choices of a job."""
    async with asyncio.timeout(HUNG_S):
        while await count(endpoint, RUNNING) < ENDLESS["n"]:
            await asyncio.sleep(0.05)


async def until_taken(job: Job) -> None:
    assert await job.changed.wait_for(lambda: job.started_at is not None, HUNG_S)


@pytest.mark.parametrize("payload", JOBS)
async def test_a_cancelled_job_frees_its_slots_in_the_engine(
    endpoint: EmulatedEndpoint, payload: dict[str, Any]
) -> None:
    before = await count(endpoint, ENDED_BY_LENGTH)
    # The cancel meets the SDK inside a POST, if there is one: the generator is dropped.
    for fault in slow_link(2 * HUNG_S):
        endpoint.emulator.faults.add(fault)
    job = endpoint.submit(payload)
    if payload.get("openai_input", payload)["stream"]:
        assert await job.changed.wait_for(lambda: bool(job.chunks), HUNG_S)
    endpoint.emulator.faults.clear()
    await until_generating(endpoint)
    assert job.status is Status.IN_PROGRESS
    endpoint.emulator.queue.cancel(job)
    following = await endpoint.run({"prompt": "Hi", "sampling_params": {"max_tokens": 2}})
    assert following.status is Status.COMPLETED
    assert await count(endpoint, RUNNING) == 0
    assert await count(endpoint, ENDED_BY_LENGTH) - before <= 1, "some ran to their end"


# The last one: it ends the worker.
async def test_when_the_engine_dies_jobs_fail_retryably_and_the_worker_exits(
    endpoint: EmulatedEndpoint,
) -> None:
    jobs = [endpoint.submit(payload) for payload in JOBS]
    for job in jobs:
        await until_taken(job)
    await until_generating(endpoint)
    os.kill(endpoint.core_pid(), signal.SIGKILL)
    async with asyncio.timeout(HUNG_S):
        assert await endpoint.process.wait() == 1
    late = endpoint.submit({"prompt": "Hi"})
    assert late.status is Status.IN_QUEUE
    for job in jobs:
        assert job.ended
        told = job.error or "".join(chunk.output for chunk in job.chunks).split("data: ")[-2]
        error = json.loads(told)["error"]
        assert (error["code"], error["retryable"]) == (503, True)
    last_line = endpoint.logged.splitlines()[-1]
    assert "the engine died" in last_line
