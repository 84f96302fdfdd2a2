"""The life of a worker that logs all that it can, in JSON, to the death of its engine."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from demo_model import ANSWERS
from support import ROOT
from support.engine.requests import ENDLESS
from support.models.minilm import DIMENSIONS, MODEL
from support.processes.background import HUNG_S
from support.processes.emulated_endpoint import EmulatedEndpoint, EndpointFactory

from emulator import Job, Status

TOKEN = "hf_canaryincredential"
pytestmark = pytest.mark.asyncio(loop_scope="module")

COUNT: Any = [{"role": "user", "content": "Count to ten."}]
MESSAGES: Any = [{"role": "user", "content": "Hi"}]
SAID = ("one", ANSWERS["Count to ten."].removeprefix("one,"))
PARSER = {
    "REASONING_PARSER": "until_comma",
    "REASONING_PARSER_PLUGIN": str(ROOT / "tests" / "plugins" / "reasoning_parser.py"),
}
LOGGED = {
    **{"DISABLE_LOG_REQUESTS": "0", "DISABLE_LOG_STATS": "0", "LOG_FORMAT": "json"},
    **{"HF_TOKEN": TOKEN, "MAX_ENGINE_RESTARTS": "0"},
}
EMBEDDER = {"EMBEDDING_MODEL_NAME": str(MODEL), "EMBEDDING_SERVED_MODEL_NAME": "minilm"}
COUNTED = 'vllm:request_success_total{{engine="0",finished_reason="stop",model_name="{}"}}'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def endpoint(started_endpoint: EndpointFactory) -> AsyncIterator[EmulatedEndpoint]:
    async with started_endpoint(**PARSER, **LOGGED) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def async_openai_client(endpoint: EmulatedEndpoint) -> AsyncIterator[openai.AsyncOpenAI]:
    url = endpoint.emulator.openai_url
    async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
        yield client


async def chat(client: openai.AsyncOpenAI) -> tuple[str | None, str | None]:
    """Return the model's reasoning and its answer."""
    whole = await client.chat.completions.create(messages=COUNT, model="demo", temperature=0)
    message: Any = whole.choices[0].message
    return message.reasoning, message.content


async def embed(client: openai.AsyncOpenAI) -> int:
    whole = await client.embeddings.create(model="minilm", input="Hi")
    return len(whole.data[0].embedding)


async def test_a_parser_of_a_plugin_separates_reasoning_from_the_answer(
    async_openai_client: openai.AsyncOpenAI,
) -> None:
    assert await chat(async_openai_client) == SAID
    stream = await async_openai_client.chat.completions.create(
        messages=COUNT, model="demo", temperature=0, stream=True
    )
    deltas: list[Any] = [event.choices[0].delta async for event in stream]
    reasoning = "".join(getattr(delta, "reasoning", None) or "" for delta in deltas)
    assert (reasoning, "".join(delta.content or "" for delta in deltas)) == SAID


async def test_a_mistake_is_refused_and_the_worker_goes_on(endpoint: EmulatedEndpoint) -> None:
    job = await endpoint.run({"prompt": "Hi", "strem": True})
    assert (job.status, '"code": 400' in (job.error or "")) == (Status.FAILED, True)
    assert await endpoint.answers()


async def test_statistics_and_requests_are_logged_where_that_is_not_disabled(
    endpoint: EmulatedEndpoint, async_openai_client: openai.AsyncOpenAI
) -> None:
    async with asyncio.timeout(HUNG_S):
        while "throughput" not in endpoint.logged:
            assert await chat(async_openai_client) == SAID
            await asyncio.sleep(1)
    assert "Added request" in endpoint.logged


async def until_taken(job: Job) -> bool:
    return await job.changed.wait_for(lambda: job.started_at is not None, HUNG_S)


async def test_when_the_engine_dies_for_good_jobs_fail_retryably_and_the_worker_exits(
    endpoint: EmulatedEndpoint,
) -> None:
    # The engine has room for the choices of all four, so none ends before another begins.
    params = {**ENDLESS, "n": 20}
    raw = {"prompt": "Hi", "sampling_params": params}
    body = {"messages": MESSAGES, **params}
    jobs = [endpoint.submit({**raw, "stream": stream}) for stream in (False, True)]
    for stream in (False, True):
        asked = {"openai_route": "/chat/completions", "openai_input": {**body, "stream": stream}}
        jobs.append(endpoint.submit(asked))
    for job in jobs:
        assert await until_taken(job)
    await anext(jobs[1].follow())
    os.kill(endpoint.core_pid(), signal.SIGKILL)
    assert await asyncio.to_thread(endpoint.worker.ended) == 1
    assert endpoint.submit({"prompt": "Hi"}).status is Status.IN_QUEUE
    for job in jobs:
        assert job.ended
        text = job.error or "".join(chunk.output for chunk in job.chunks).split("data: ")[-2]
        error = json.loads(text)["error"]
        assert (error["code"], error["retryable"]) == (503, True)


# The last one: the worker has ended.
async def test_every_line_that_it_has_logged_is_an_object_and_none_shows_a_secret(
    endpoint: EmulatedEndpoint,
) -> None:
    log = [json.loads(line) for line in endpoint.logged.splitlines()]
    assert all({"time", "level", "message"} <= line.keys() for line in log)
    messages = [line["message"] for line in log]
    # Of the worker, vLLM, its core and the SDK.
    assert any(message.startswith("start-up: warm-up") for message in messages)
    assert any("Added request" in message for message in messages)
    assert any(message.startswith("(EngineCore pid=") for message in messages)
    assert any("requestId" in line for line in log)
    # Of accepted jobs, a refused one and those that the engine's death has ended.
    assert {200, 400, 503} == {line["status"] for line in log if line.get("job")}
    *_, last = [line for line in log if line["level"] == "CRITICAL"]
    assert last["message"].startswith("the engine died")
    assert TOKEN not in endpoint.logged


# That an engine is restarted test_serve.py shows, too. A restarted one imports vLLM anew.
@pytest.mark.slow
async def test_an_engine_dies_alone_and_is_restarted(started_endpoint: EndpointFactory) -> None:
    async with (
        started_endpoint(**PARSER, **EMBEDDER) as endpoint,
        openai.AsyncOpenAI(
            base_url=endpoint.emulator.openai_url, api_key="any", max_retries=0
        ) as client,
    ):
        await both_die_and_are_restarted(endpoint, client)


async def both_die_and_are_restarted(
    endpoint: EmulatedEndpoint, client: openai.AsyncOpenAI
) -> None:
    main, embedder = endpoint.worker.cores()
    assert await embed(client) == DIMENSIONS
    os.kill(embedder, signal.SIGKILL)
    waiting = asyncio.create_task(embed(client))
    # Long for any machine, and yet less than what the platform keeps of an answer. Streams of other
    # routes: unit/dialects/openai/test_forward.py.
    long: dict[str, Any] = {"max_tokens": 900, "n": 60, "extra_body": {"ignore_eos": True}}
    stream = await client.chat.completions.create(
        model="demo", messages=MESSAGES, stream=True, **long
    )
    await anext(aiter(stream))
    os.kill(main, signal.SIGKILL)
    with pytest.raises(openai.APIError, match="engine"):
        async for _ in stream:
            pass
    # What has not been answered in any part begins again on the new engines.
    assert (await chat(client), await waiting) == (SAID, DIMENSIONS)
    assert (await chat(client), await embed(client)) == (SAID, DIMENSIONS)
    assert not set(endpoint.worker.cores()) & {main, embedder}
    # Counted anew, for both engines.
    metrics = (await endpoint.run({"openai_route": "/metrics"})).output[0].splitlines()
    counts = dict(line.rsplit(" ", 1) for line in metrics)
    for model in ("demo", "minilm"):
        assert float(counts[COUNTED.format(model)]) == 2
