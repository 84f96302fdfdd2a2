"""`openai` through the transports, against an emulator with a function in place of its workers."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import httpx2
import openai
import pytest
from support.deployed import ACCOUNT, HANGS, Failed, deployed

from emulator import Emulator, Status
from llm_worker_client import AsyncRunpodTransport, RunpodTransport
from llm_worker_client.account import NoKey

WORDS = ["one", " two"]
ASKED: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Count."}]}
CHAT = {"id": "c", "object": "chat.completion", "created": 0, "model": "m"}
ERROR = {"message": "no such model", "type": "NotFoundError", "param": "model", "code": 404}


def chunk(text: str) -> str:
    choice = {"index": 0, "delta": {"content": text}}
    return (
        f"data: {json.dumps({**CHAT, 'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n"
    )


def answers(given: Any) -> list[Any]:
    """Answer as a worker would: the name of the model says what happens."""
    body = given.get("openai_input")
    if body is None:
        return [{"object": "list", "data": [{"id": "m", "object": "model"}]}]
    if body["model"] == "missing":
        raise Failed(json.dumps({"error": ERROR}))
    if body["model"] == HANGS:
        return [chunk("one"), HANGS] if body.get("stream") else [HANGS]
    if body.get("stream"):
        return [*map(chunk, WORDS), "data: [DONE]\n\n"]
    return [{**CHAT, "choices": [{"index": 0, "message": {"content": "".join(WORDS)}}]}]


@pytest.fixture
async def emulator() -> AsyncIterator[Emulator]:
    async with deployed(answers) as running:
        yield running


def of(emulator: Emulator) -> dict[str, Any]:
    return {"endpoint_id": "local", "api_key": ACCOUNT, "base_url": emulator.api_url}


@pytest.fixture(params=[httpx, httpx2], ids=["httpx", "httpx2"])
async def client(
    request: pytest.FixtureRequest, emulator: Emulator
) -> AsyncIterator[openai.AsyncOpenAI]:
    http: Any = request.param.AsyncClient(transport=AsyncRunpodTransport(**of(emulator)))
    async with openai.AsyncOpenAI(api_key="any", http_client=http, max_retries=0) as opened:
        yield opened


@pytest.fixture(params=[httpx, httpx2], ids=["httpx", "httpx2"])
def blocking(request: pytest.FixtureRequest, emulator: Emulator) -> openai.OpenAI:
    http: Any = request.param.Client(transport=RunpodTransport(**of(emulator)))
    return openai.OpenAI(api_key="any", http_client=http, max_retries=0)


async def test_the_asyncio_client_chats_and_lists(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(**ASKED)
    assert whole.choices[0].message.content == "one two"
    stream = await client.chat.completions.create(**ASKED, stream=True)
    assert [event.choices[0].delta.content async for event in stream] == WORDS
    assert [model.id async for model in client.models.list()] == ["m"]
    with pytest.raises(openai.NotFoundError, match="no such model"):
        await client.chat.completions.create(**{**ASKED, "model": "missing"})


async def test_the_client_without_asyncio_does_the_same(blocking: openai.OpenAI) -> None:
    def run() -> None:
        with blocking as client:
            whole = client.chat.completions.create(**ASKED)
            assert whole.choices[0].message.content == "one two"
            stream = client.chat.completions.create(**ASKED, stream=True)
            assert [event.choices[0].delta.content for event in stream] == WORDS
            assert [model.id for model in client.models.list()] == ["m"]
            with pytest.raises(openai.NotFoundError, match="no such model"):
                client.chat.completions.create(**{**ASKED, "model": "missing"})

    await asyncio.to_thread(run)


async def ended(emulator: Emulator) -> None:
    (job,) = emulator.queue.jobs.values()
    assert await job.wait_ended(60)
    assert job.status is Status.CANCELLED


@pytest.mark.parametrize("stream", [True, False])
async def test_the_job_of_a_request_that_is_given_up_is_cancelled(
    client: openai.AsyncOpenAI, emulator: Emulator, stream: bool
) -> None:
    asked = {**ASKED, "model": HANGS, "stream": stream}
    if stream:
        opened: Any = await client.chat.completions.create(**asked)
        await anext(opened)
        await opened.close()
    else:
        asking = asyncio.create_task(client.chat.completions.create(**asked))
        await emulator.queue.arrived.wait_for(lambda: bool(emulator.queue.jobs), 60)
        asking.cancel()
    await ended(emulator)


async def test_a_stream_that_is_closed_without_asyncio_is_cancelled(
    blocking: openai.OpenAI, emulator: Emulator
) -> None:
    def run() -> None:
        with blocking as client:
            stream: Any = client.chat.completions.create(**{**ASKED, "model": HANGS}, stream=True)
            next(stream)
            stream.close()

    await asyncio.to_thread(run)
    await ended(emulator)


async def test_the_clients_timeout_holds_and_cancels(
    client: openai.AsyncOpenAI, blocking: openai.OpenAI, emulator: Emulator
) -> None:
    hanging = {**ASKED, "model": HANGS, "timeout": 0.2}
    with pytest.raises(openai.APITimeoutError):
        await client.chat.completions.create(**hanging)
    create: Any = blocking.chat.completions.create
    with blocking, pytest.raises(openai.APITimeoutError):
        await asyncio.to_thread(create, **hanging)
    for job in emulator.queue.jobs.values():
        assert await job.wait_ended(60)
        assert job.status is Status.CANCELLED


async def test_a_wrong_account_is_an_error_that_does_not_show_the_key(emulator: Emulator) -> None:
    with RunpodTransport("local", "rpa_wrong", emulator.api_url) as transport:
        request = httpx.Request("GET", "http://any/v1/models")
        response = await asyncio.to_thread(transport.handle_request, request)
        assert response.status_code == 401
        assert "rpa_wrong" not in response.read().decode() + repr(transport.__dict__)


def test_without_any_key_there_is_no_transport(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.delenv("RUNPOD_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(NoKey, match="RUNPOD_API_KEY"):
        RunpodTransport("local")


async def test_a_reader_that_is_cancelled_cancels_the_job_also_where_nobody_closes_the_response(
    emulator: Emulator,
) -> None:
    transport = AsyncRunpodTransport(**of(emulator))
    body = {**ASKED, "model": HANGS, "stream": True}
    request = httpx.Request("POST", "http://any/v1/chat/completions", json=body)
    response = await transport.handle_async_request(request)
    came = asyncio.Event()

    async def read() -> None:
        async for _ in response.stream:
            came.set()

    reading = asyncio.create_task(read())
    await came.wait()
    reading.cancel()
    await asyncio.wait({reading})
    await transport.aclose()
    (job,) = emulator.queue.jobs.values()
    assert job.status is Status.CANCELLED
