"""A model and an embedder in one worker: either can die, and is back, while the other goes on."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest
import pytest_asyncio
from demo_model import ANSWERS
from support import ROOT
from support.models.minilm import DIMENSIONS, MODEL
from support.processes.background import HUNG_S
from support.processes.emulated_endpoint import EmulatedEndpoint, EndpointFactory

pytestmark = pytest.mark.asyncio(loop_scope="module")

COUNT: Any = [{"role": "user", "content": "Count to ten."}]
MESSAGES: Any = [{"role": "user", "content": "Hi"}]
SAID = ("one", ANSWERS["Count to ten."].removeprefix("one,"))
LONG: dict[str, Any] = {"model": "demo", "stream": True, "extra_body": {"ignore_eos": True}}
# The others can't ignore the end of a text, but ask for what is long once reasoning has ended: at
# the comma of an answer that surely has one.
LIST = {"type": "array", "items": {"type": "boolean"}, "minItems": 500}
LONG_MESSAGE: dict[str, Any] = {
    **{"model": "demo", "stream": True, "max_tokens": 1900, "messages": COUNT},
    "extra_body": {"temperature": 0},
    "output_config": {"format": {"type": "json_schema", "schema": LIST}},
}
LONG_RESPONSE: dict[str, Any] = {
    **{"model": "demo", "stream": True, "temperature": 0},
    "text": {"format": {"type": "json_schema", "name": "list", "schema": LIST}},
}
SETTINGS = {
    "EMBEDDING_MODEL_NAME": str(MODEL),
    "EMBEDDING_SERVED_MODEL_NAME": "minilm",
    "DISABLE_LOG_REQUESTS": "0",
    "DISABLE_LOG_STATS": "0",
    "REASONING_PARSER": "until_comma",
    "REASONING_PARSER_PLUGIN": str(ROOT / "tests" / "plugins" / "reasoning_parser.py"),
}
COUNTED = 'vllm:request_success_total{{engine="0",finished_reason="stop",model_name="{}"}}'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def endpoint(started_endpoint: EndpointFactory) -> AsyncIterator[EmulatedEndpoint]:
    async with started_endpoint(**SETTINGS) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(endpoint: EmulatedEndpoint) -> AsyncIterator[openai.AsyncOpenAI]:
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
    client: openai.AsyncOpenAI,
) -> None:
    assert await chat(client) == SAID
    stream = await client.chat.completions.create(
        messages=COUNT, model="demo", temperature=0, stream=True
    )
    deltas: list[Any] = [event.choices[0].delta async for event in stream]
    reasoning = "".join(getattr(delta, "reasoning", None) or "" for delta in deltas)
    assert (reasoning, "".join(delta.content or "" for delta in deltas)) == SAID


async def test_an_engine_dies_alone_and_is_restarted(
    endpoint: EmulatedEndpoint, client: openai.AsyncOpenAI
) -> None:
    main, embedder = endpoint.worker.cores()
    # The list's grammar takes seconds to compile, once: later all streams begin together.
    async for _ in await client.responses.create(
        input=COUNT, max_output_tokens=16, **LONG_RESPONSE
    ):
        pass
    assert await embed(client) == DIMENSIONS
    os.kill(embedder, signal.SIGKILL)
    waiting = asyncio.create_task(embed(client))
    await streams_break(endpoint, main)
    # What has not been answered in any part begins again on the new engines.
    assert (await chat(client), await waiting) == (SAID, DIMENSIONS)
    assert (await chat(client), await embed(client)) == (SAID, DIMENSIONS)
    assert not set(endpoint.worker.cores()) & {main, embedder}
    # Counted anew, for both engines.
    metrics = (await endpoint.run({"openai_route": "/metrics"})).output[0].splitlines()
    counts = dict(line.rsplit(" ", 1) for line in metrics)
    for model in ("demo", "minilm"):
        assert float(counts[COUNTED.format(model)]) == 2


async def test_statistics_and_requests_are_logged_where_that_is_not_disabled(
    endpoint: EmulatedEndpoint, client: openai.AsyncOpenAI
) -> None:
    async with asyncio.timeout(HUNG_S):
        while "throughput" not in endpoint.logged:
            assert await chat(client) == SAID
            await asyncio.sleep(0.1)
    assert "Added request" in endpoint.logged


async def streams_break(endpoint: EmulatedEndpoint, main: int) -> None:
    """Kill the model's engine under clients that read: every one raises its package's exception."""
    url = endpoint.emulator.openai_url
    async with (
        openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as of_openai,
        anthropic.AsyncAnthropic(
            base_url=url.removesuffix("/v1"), api_key="any", max_retries=0
        ) as of_anthropic,
    ):
        # Long for any machine, and yet less than what the platform keeps of an answer.
        streams = await asyncio.gather(
            of_openai.chat.completions.create(messages=MESSAGES, max_tokens=900, n=60, **LONG),
            of_openai.responses.create(input=COUNT, max_output_tokens=1900, **LONG_RESPONSE),
            of_anthropic.messages.create(**LONG_MESSAGE),
        )
        for stream in streams:
            await anext(aiter(stream))
        os.kill(main, signal.SIGKILL)
        errors = (openai.APIError, openai.APIError, anthropic.APIError)
        for stream, error in zip(streams, errors, strict=True):
            with pytest.raises(error, match="engine"):
                async for _ in stream:
                    pass
