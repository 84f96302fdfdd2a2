"""A slow link, one slot in the engine: what a cancel frees, and what an engine's death leaves."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from support.processes.endpoints import Endpoint, EndpointFactory

from emulator import Job, Status

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG: dict[str, Any] = {"max_tokens": 1900, "ignore_eos": True}
MESSAGES = [{"role": "user", "content": "Hi"}]
JOBS = [{"prompt": "Hi", "sampling_params": LONG, "stream": stream} for stream in (False, True)] + [
    {
        "openai_route": "/v1/chat/completions",
        "openai_input": {"messages": MESSAGES, **LONG, "stream": stream},
    }
    for stream in (False, True)
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def endpoint(started_endpoint: EndpointFactory) -> AsyncIterator[Endpoint]:
    """Each POST takes 50 ms, so a cancel meets the SDK inside one: the generator is dropped."""
    async with started_endpoint(post_delay_s=0.05, MAX_NUM_SEQS="1") as running:
        yield running


async def started(job: Job) -> None:
    assert await job.changed.wait_for(lambda: job.started_at is not None, 10)


@pytest.mark.parametrize("payload", JOBS)
async def test_a_cancelled_job_frees_the_engines_only_slot(
    endpoint: Endpoint, payload: dict[str, Any]
) -> None:
    job = endpoint.submit(payload)
    await started(job)
    await asyncio.sleep(0.7)  # the engine is busy with it: 1900 tokens take seconds
    assert job.status is Status.IN_PROGRESS
    endpoint.emulator.queue.cancel(job)
    following = endpoint.submit({"prompt": "Hi", "sampling_params": {"max_tokens": 2}})
    # Generous: a slot that is not freed is held for seconds more.
    assert await following.wait_ended(2)
    assert following.status is Status.COMPLETED


async def test_when_the_engine_dies_jobs_fail_retryably_and_the_worker_exits(
    endpoint: Endpoint,
) -> None:
    jobs = [endpoint.submit(payload) for payload in JOBS]
    for job in jobs:
        await started(job)
    await asyncio.sleep(0.5)
    os.kill(endpoint.core_pid(), signal.SIGKILL)
    async with asyncio.timeout(20):
        assert await endpoint.process.wait() == 1
    late = endpoint.submit({"prompt": "Hi"})
    await asyncio.sleep(0.2)
    assert late.status is Status.IN_QUEUE
    for job in jobs:
        assert job.ended
        told = job.error or "".join(chunk.output for chunk in job.chunks).split("data: ")[-2]
        error = json.loads(told)["error"]
        assert (error["code"], error["retryable"]) == (503, True)
    last_line = endpoint.logged.splitlines()[-1]
    assert "the engine died" in last_line
