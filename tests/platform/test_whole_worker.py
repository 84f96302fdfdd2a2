"""Tests of a worker with all logs in JSON until its engine dies."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from demo_model import ANSWERS
from support import ROOT
from support.engine.requests import ENDLESS
from support.models.minilm import DIMENSIONS, MODEL
from support.processes.background import HUNG_S
from support.processes.emulated_endpoint import EmulatedEndpoint, emulated_endpoint

from emulator import Job, Status

TOKEN = "hf_canaryincredential"
pytestmark = pytest.mark.asyncio(loop_scope="module")

COUNT: Any = [{"role": "user", "content": "Count to ten."}]
MESSAGES: Any = [{"role": "user", "content": "Hi"}]
EXPECTED_ANSWER = ("one", ANSWERS["Count to ten."].removeprefix("one,"))
PARSER = {
    "REASONING_PARSER": "until_comma",
    "REASONING_PARSER_PLUGIN": str(ROOT / "tests" / "plugins" / "reasoning_parser.py"),
}
LOG_SETTINGS = {
    **{"DISABLE_LOG_REQUESTS": "0", "DISABLE_LOG_STATS": "0", "LOG_FORMAT": "json"},
    **{"HF_TOKEN": TOKEN, "MAX_ENGINE_RESTARTS": "0"},
}
EMBEDDER = {"EMBEDDING_MODEL_NAME": str(MODEL), "EMBEDDING_SERVED_MODEL_NAME": "minilm"}
FINISHED_REQUESTS = (
    'vllm:request_success_total{{engine="0",finished_reason="stop",model_name="{}"}}'
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def endpoint(
    worker_environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[EmulatedEndpoint]:
    environ = {**worker_environ, **PARSER, **LOG_SETTINGS}
    log = tmp_path_factory.mktemp("worker") / "log"
    async with emulated_endpoint(environ, log) as running:
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


@pytest.mark.slow
async def test_a_parser_of_a_plugin_separates_reasoning_from_the_answer(
    async_openai_client: openai.AsyncOpenAI,
) -> None:
    assert await chat(async_openai_client) == EXPECTED_ANSWER
    stream = await async_openai_client.chat.completions.create(
        messages=COUNT, model="demo", temperature=0, stream=True
    )
    deltas: list[Any] = [event.choices[0].delta async for event in stream]
    reasoning = "".join(getattr(delta, "reasoning", None) or "" for delta in deltas)
    assert (reasoning, "".join(delta.content or "" for delta in deltas)) == EXPECTED_ANSWER


async def test_a_mistake_fails_with_all_error_fields_and_the_worker_continues(
    endpoint: EmulatedEndpoint,
) -> None:
    job = await endpoint.run({"prompt": "Hi", "strem": True})
    assert job.status is Status.FAILED
    error = json.loads(job.error or "")["error"]
    assert sorted(error) == ["code", "message", "param", "request_id", "retryable", "type"]
    assert (error["code"], error["request_id"], error["retryable"]) == (400, job.id, False)
    assert await endpoint.answers_jobs()


async def test_statistics_and_requests_are_logged_unless_disabled(
    endpoint: EmulatedEndpoint, async_openai_client: openai.AsyncOpenAI
) -> None:
    async with asyncio.timeout(HUNG_S):
        while "throughput" not in endpoint.log:
            assert await chat(async_openai_client) == EXPECTED_ANSWER
            await asyncio.sleep(1)
    assert "Added request" in endpoint.log


async def wait_until_taken(job: Job) -> bool:
    return await job.changed.wait_for(lambda: job.started_at is not None, HUNG_S)


async def test_jobs_fail_as_retryable_and_the_worker_exits_when_the_engine_dies_for_good(
    endpoint: EmulatedEndpoint,
) -> None:
    # The engine has slots for the choices of all four jobs, so all of them run together.
    params = {**ENDLESS, "n": 20}
    raw = {"prompt": "Hi", "sampling_params": params}
    body = {"messages": MESSAGES, **params}
    jobs = [endpoint.submit({**raw, "stream": stream}) for stream in (False, True)]
    for stream in (False, True):
        payload = {"openai_route": "/chat/completions", "openai_input": {**body, "stream": stream}}
        jobs.append(endpoint.submit(payload))
    for job in jobs:
        assert await wait_until_taken(job)
    await anext(jobs[1].follow_chunks())
    os.kill(endpoint.core_pid(), signal.SIGKILL)
    assert await asyncio.to_thread(endpoint.worker.wait_for_exit) == 1
    assert endpoint.submit({"prompt": "Hi"}).status is Status.IN_QUEUE
    for job in jobs:
        assert job.has_ended
        text = job.error or "".join(chunk.output for chunk in job.chunks).split("data: ")[-2]
        error = json.loads(text)["error"]
        assert (error["code"], error["retryable"]) == (503, True)


# This test must be the last one, because the worker has exited.
async def test_every_line_of_the_log_is_an_object_without_secrets(
    endpoint: EmulatedEndpoint,
) -> None:
    log = [json.loads(line) for line in endpoint.log.splitlines()]
    assert all({"time", "level", "message"} <= line.keys() for line in log)
    messages = [line["message"] for line in log]
    # Messages of the worker, vLLM, its core and the SDK.
    assert any(message.startswith("start-up: warm-up") for message in messages)
    assert any("Added request" in message for message in messages)
    assert any(message.startswith("(EngineCore pid=") for message in messages)
    assert any("requestId" in line for line in log)
    # Statuses of accepted jobs, of a refused job, and of jobs that the engine's death ended.
    assert {200, 400, 503} == {line["status"] for line in log if line.get("job")}
    *_, last = [line for line in log if line["level"] == "CRITICAL"]
    assert last["message"].startswith("the engine died")
    assert TOKEN not in endpoint.log


# model/test_starts.py also tests a restart. A restarted engine imports vLLM again.
@pytest.mark.slow
async def test_each_dead_engine_is_restarted_separately(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    environ = {**worker_environ, **PARSER, **EMBEDDER}
    async with (
        emulated_endpoint(environ, tmp_path / "log") as endpoint,
        openai.AsyncOpenAI(
            base_url=endpoint.emulator.openai_url, api_key="any", max_retries=0
        ) as client,
    ):
        await kill_both_engines(endpoint, client)


async def kill_both_engines(endpoint: EmulatedEndpoint, client: openai.AsyncOpenAI) -> None:
    main, embedder = endpoint.worker.core_pids()
    assert await embed(client) == DIMENSIONS
    os.kill(embedder, signal.SIGKILL)
    waiting = asyncio.create_task(embed(client))
    # Long on any machine, but below the platform's limit for a response. The unit tests in
    # dialects/openai/test_forward.py test streams of other routes.
    long: dict[str, Any] = {"max_tokens": 900, "n": 60, "extra_body": {"ignore_eos": True}}
    stream = await client.chat.completions.create(
        model="demo", messages=MESSAGES, stream=True, **long
    )
    await anext(aiter(stream))
    os.kill(main, signal.SIGKILL)
    with pytest.raises(openai.APIError, match="engine"):
        async for _ in stream:
            pass
    # Requests without any output start again on the new engines.
    assert (await chat(client), await waiting) == (EXPECTED_ANSWER, DIMENSIONS)
    assert (await chat(client), await embed(client)) == (EXPECTED_ANSWER, DIMENSIONS)
    assert not set(endpoint.worker.core_pids()) & {main, embedder}
    # The counters start again at zero for both engines.
    metrics = (await endpoint.run({"openai_route": "/metrics"})).output[0].splitlines()
    counts = dict(line.rsplit(" ", 1) for line in metrics)
    for model in ("demo", "minilm"):
        assert float(counts[FINISHED_REQUESTS.format(model)]) == 2
