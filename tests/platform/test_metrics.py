"""Metrics that outlive their worker: a receiver has them although the worker was killed."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from support.metrics.receiver import Push, Receiver, otlp_receiver
from support.processes.background import poll_until
from support.processes.emulated_endpoint import EmulatedEndpoint, EndpointFactory

from emulator import Status

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 30, "ignore_eos": True}
KEY = "canary-of-the-receiver"
JOBS: list[dict[str, Any]] = [
    {"prompt": "Hi", "sampling_params": {"max_tokens": 40, "ignore_eos": True}, "stream": True},
    {"openai_route": "/v1/chat/completions", "openai_input": CHAT},
    {"openai_route": "/v1/nothing"},
]
COUNTERS = {
    "taken": "worker_jobs_taken_total",
    "finished": "worker_jobs_finished_total",
    "chunks": "worker_chunks_total",
    "first tokens": "worker_first_token_seconds",
    "tokens": "vllm:generation_tokens_total",
}


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with otlp_receiver() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def endpoint(
    start_endpoint: EndpointFactory, receiver: Receiver
) -> AsyncIterator[EmulatedEndpoint]:
    settings = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_EXPORTER_OTLP_HEADERS": f"x-key={KEY}",
        "OTEL_SERVICE_NAME": "chat",
    }
    async with start_endpoint(**settings) as running:
        yield running


def counters(push: Push) -> dict[str, float]:
    return {name: push.value(metric) for name, metric in COUNTERS.items()}


async def wait_for_taken(receiver: Receiver, count: float) -> Push:
    """Wait for a push after the worker has taken and finished a number of jobs."""
    await poll_until(lambda: counters(receiver.pushes[-1])["finished"] >= count)
    return receiver.pushes[-1]


async def test_a_worker_that_is_killed_a_second_after_its_last_job_has_pushed_all_counters(
    endpoint: EmulatedEndpoint, receiver: Receiver
) -> None:
    # The first push was earlier than the first job, so that all increases count from 0.
    assert counters(receiver.pushes[0])["taken"] == 0
    before = counters(await wait_for_taken(receiver, 1))
    jobs = await asyncio.gather(*(endpoint.run(job) for job in JOBS * 5))
    # The platform kills an idle worker without a signal that it could handle.
    await asyncio.sleep(1)
    worker = endpoint.emulator.queue.get_worker("worker-1").process
    assert worker
    worker.send_signal(signal.SIGKILL)
    await asyncio.to_thread(endpoint.worker.process.wait)

    assert [job.status for job in jobs] == [Status.COMPLETED, Status.COMPLETED, Status.FAILED] * 5
    last = receiver.pushes[-1]
    increases = {name: count - before[name] for name, count in counters(last).items()}
    assert increases == {
        "taken": len(jobs),
        "finished": len(jobs),
        "chunks": sum(len(job.output or []) for job in jobs),
        "first tokens": 5,
        "tokens": 5 * (40 + 30),
    }
    assert last.value("worker_jobs_finished_total", code="404") == 5
    assert last.value("worker_jobs_running") == 0
    assert last.resource["service.name"] == "chat"
    assert last.resource["service.instance.id"] == "worker-1"
    assert last.headers["x-key"] == KEY
    assert KEY not in endpoint.log
