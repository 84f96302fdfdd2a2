"""The emulator with workers of the real SDK, without an engine, and clients through it."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
import runpod
from support.processes.background import HUNG_S
from support.processes.scripted_worker import LOOPS, scripted_worker

from emulator import Emulator, Job, Status
from job_loop.wire import FROZEN_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAX_CONCURRENCY = 8
ERROR = json.dumps({"error": {"message": "no such model", "code": 404}})


@pytest.fixture(scope="module", params=LOOPS)
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def emulator(loop: str) -> AsyncIterator[Emulator]:
    """An emulator with one worker for all the tests below."""
    async with (
        Emulator() as running,
        scripted_worker(running.worker_environ(), MAX_CONCURRENCY, loop),
    ):
        assert await running.queue.arrived.wait_for(lambda: bool(running.queue.workers), HUNG_S)
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def async_openai_client(emulator: Emulator) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=emulator.openai_url, api_key="any", max_retries=0
    ) as client:
        yield client


def submit(emulator: Emulator, *yields: object) -> Job:
    return emulator.queue.submit({"input": {"yields": yields}})


async def test_every_yield_arrives_in_order_and_in_the_aggregate(emulator: Emulator) -> None:
    outputs = [{"number": number, "text": "ü"} for number in range(50)]
    job = submit(emulator, *outputs)
    assert await job.wait_ended(HUNG_S)
    assert [chunk.output for chunk in job.chunks] == outputs
    assert (job.status, job.output) == (Status.COMPLETED, outputs)


async def test_a_yielded_error_fails_the_job_with_its_text(emulator: Emulator) -> None:
    job = submit(emulator, "begun", {"error": ERROR})
    assert await job.wait_ended(HUNG_S)
    assert (job.status, job.error, job.output) == (Status.FAILED, ERROR, None)


async def test_progress_shows_in_the_status_of_a_running_job(emulator: Emulator) -> None:
    job = submit(emulator, {"progress": "half"}, "hang")
    assert await job.changed.wait_for(lambda: job.progress is not None, HUNG_S)
    report = job.report()
    assert (report["status"], report["output"]) == ("IN_PROGRESS", "half")
    emulator.queue.cancel(job)


async def test_cancelling_frees_the_workers_slots(emulator: Emulator) -> None:
    """With a hanging job in every slot, the next job runs only if cancelling frees one."""
    hanging = [submit(emulator, "begun", "hang") for _ in range(MAX_CONCURRENCY)]
    for job in hanging:
        assert await anext(job.follow())
        emulator.queue.cancel(job)
    job = submit(emulator, "next")
    assert await job.wait_ended(HUNG_S)
    assert job.output == ["next"]


async def test_a_job_that_comes_after_its_polling_worker_died_is_run_by_the_next(loop: str) -> None:
    """The dead worker's poll, held for 20 s, must not swallow the job."""
    async with Emulator() as emulator:
        queue = emulator.queue
        async with scripted_worker(emulator.worker_environ("dead"), MAX_CONCURRENCY, loop):
            assert await queue.arrived.wait_for(lambda: "dead" in queue.workers, HUNG_S)
        job = submit(emulator, "run")
        async with scripted_worker(emulator.worker_environ("alive"), MAX_CONCURRENCY, loop):
            assert await job.wait_ended(HUNG_S)
    assert (job.worker, job.output) == ("alive", ["run"])


def chat(message: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": message}]}


async def test_an_openai_client_gets_an_answer_whole_and_streamed(
    async_openai_client: openai.AsyncOpenAI,
) -> None:
    models = await async_openai_client.models.list()
    assert [model.id for model in models.data] == ["/v1/models"]
    create = async_openai_client.chat.completions.create
    completion = await create(**chat("hello there"))
    assert completion.choices[0].message.content == "hello there"
    stream = await create(**chat("a b c"), stream=True)
    deltas = [chunk.choices[0].delta.content async for chunk in stream]
    assert deltas == [None, "a", "b", "c"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_failed_job_raises_the_openai_clients_own_exception(
    async_openai_client: openai.AsyncOpenAI, stream: bool
) -> None:
    with pytest.raises(openai.NotFoundError, match="no such model") as caught:
        await async_openai_client.chat.completions.create(**chat("fail"), stream=stream)
    assert caught.value.param == "model"


async def test_an_openai_client_that_closes_its_stream_cancels_the_job(
    emulator: Emulator, async_openai_client: openai.AsyncOpenAI
) -> None:
    stream = await async_openai_client.chat.completions.create(**chat("hang"), stream=True)
    job = list(emulator.queue.jobs.values())[-1]
    await stream.close()
    assert await job.wait_ended(HUNG_S)
    assert job.status is Status.CANCELLED


async def test_the_platforms_own_client_is_served(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runpod, "endpoint_url_base", emulator.api_url)

    def use() -> tuple[Any, ...]:
        endpoint = runpod.Endpoint(emulator.options.endpoint, api_key="any")
        job = endpoint.run({"yields": ["a", "b"]})
        hanging = endpoint.run({"yields": ["begun", "hang"]})
        hanging.cancel()
        streamed = list(job.stream())
        statuses = [job.status(), hanging.status()]
        return streamed, job.output(), statuses, endpoint.run_sync({"yields": ["c"]})

    streamed, output, statuses, synced = await asyncio.to_thread(use)
    assert streamed == output == ["a", "b"]
    assert statuses == ["COMPLETED", "CANCELLED"]
    assert synced == ["c"]


# Waits for longer than FROZEN_S; unit/job_loop/test_thaw.py sets the clock forward.
@pytest.mark.slow
async def test_a_job_that_was_handed_over_to_a_frozen_worker_runs_after_the_thaw() -> None:
    """Its answer lies in the worker's socket when the worker notices that it was frozen."""
    async with (
        Emulator() as emulator,
        scripted_worker(emulator.worker_environ(), MAX_CONCURRENCY, "worker") as process,
    ):
        first = submit(emulator, "first")
        assert await first.wait_ended(HUNG_S)
        # The first take has brought the job; the next one is held.
        worker = emulator.queue.worker("worker-1")
        async with asyncio.timeout(HUNG_S):
            while worker.takes < 2:
                await asyncio.sleep(0.01)
        process.signal(signal.SIGSTOP)
        job = submit(emulator, "second")
        await asyncio.sleep(1.2 * FROZEN_S)
        assert job.status is Status.IN_PROGRESS
        process.signal(signal.SIGCONT)
        assert await job.wait_ended(HUNG_S)
        assert (job.status, job.output) == (Status.COMPLETED, ["second"])
