"""`openai` through the transports, against an emulator with a function in place of its workers."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import httpx2
import openai
import pytest
from support.processes.background import HUNG_S
from support.scripted_endpoint import HANG, JobFailure, OutputsFunction, only_job

from emulator import Emulator, Status
from llm_worker_client import AsyncRunpodTransport, RunpodTransport
from llm_worker_client.mapping.requests import CONTENT_PART_BYTES

WORDS = ["one", " two"]
ARGUMENTS: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Count."}]}
HANGING = {**ARGUMENTS, "model": HANG}
CHAT = {"id": "c", "object": "chat.completion", "created": 0, "model": "m"}
ERROR = {"message": "no such model", "type": "NotFoundError", "param": "model", "code": 404}
PART = {"content_base64": base64.b64encode(bytes(CONTENT_PART_BYTES)).decode()}


def chunk(text: str) -> str:
    choice = {"index": 0, "delta": {"content": text}}
    event = {**CHAT, "object": "chat.completion.chunk", "choices": [choice]}
    return f"data: {json.dumps(event)}\n\n"


@pytest.fixture
def answer() -> OutputsFunction:
    """Return a worker's answers; the name of the model selects them."""

    def answer(job_input: Any) -> list[Any]:
        body = job_input["openai_input"]
        if "/content" in job_input["openai_route"]:
            return [PART if "offset=0" in job_input["openai_route"] else JobFailure("lost")]
        if body is None:
            return [{"object": "list", "data": [{"id": "m", "object": "model"}]}]
        if body["model"] == "missing":
            return [JobFailure(json.dumps({"error": ERROR}))]
        if body["model"] == HANG:
            return [chunk("one"), HANG] if body.get("stream") else [HANG]
        if body.get("stream"):
            return [*map(chunk, WORDS), "data: [DONE]\n\n"]
        return [{**CHAT, "choices": [{"index": 0, "message": {"content": "".join(WORDS)}}]}]

    return answer


@pytest.fixture(params=[httpx, httpx2], ids=["httpx", "httpx2"])
def httpx_package(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
async def async_openai_client(
    httpx_package: Any, endpoint_args: dict[str, Any]
) -> AsyncIterator[openai.AsyncOpenAI]:
    http = httpx_package.AsyncClient(transport=AsyncRunpodTransport(**endpoint_args))
    async with openai.AsyncOpenAI(api_key="any", http_client=http, max_retries=0) as client:
        yield client


@pytest.fixture
def openai_client(httpx_package: Any, endpoint_args: dict[str, Any]) -> openai.OpenAI:
    http = httpx_package.Client(transport=RunpodTransport(**endpoint_args))
    return openai.OpenAI(api_key="any", http_client=http, max_retries=0)


async def test_the_asyncio_client_chats_and_lists_models(
    async_openai_client: openai.AsyncOpenAI,
) -> None:
    create: Any = async_openai_client.chat.completions.create
    assert (await create(**ARGUMENTS)).choices[0].message.content == "one two"
    stream = await create(**ARGUMENTS, stream=True)
    assert [event.choices[0].delta.content async for event in stream] == WORDS
    assert [model.id async for model in async_openai_client.models.list()] == ["m"]
    with pytest.raises(openai.NotFoundError, match="no such model"):
        await create(**{**ARGUMENTS, "model": "missing"})


async def test_the_synchronous_client_chats_and_lists_models(openai_client: openai.OpenAI) -> None:
    def run() -> None:
        with openai_client as client:
            create: Any = client.chat.completions.create
            assert create(**ARGUMENTS).choices[0].message.content == "one two"
            stream = create(**ARGUMENTS, stream=True)
            assert [event.choices[0].delta.content for event in stream] == WORDS
            assert [model.id for model in client.models.list()] == ["m"]
            with pytest.raises(openai.NotFoundError, match="no such model"):
                create(**{**ARGUMENTS, "model": "missing"})

    await asyncio.to_thread(run)


async def check_cancelled(emulator: Emulator) -> None:
    for job in emulator.queue.jobs.values():
        assert await job.wait_for_end(HUNG_S)
        assert job.status is Status.CANCELLED


@pytest.mark.parametrize("stream", [True, False])
async def test_the_job_of_a_cancelled_request_is_cancelled(
    async_openai_client: openai.AsyncOpenAI, emulator: Emulator, stream: bool
) -> None:
    create: Any = async_openai_client.chat.completions.create
    if stream:
        response = await create(**HANGING, stream=True)
        await anext(response)
        await response.close()
    else:
        asking = asyncio.create_task(create(**HANGING))
        await only_job(emulator)
        asking.cancel()
    await only_job(emulator)
    await check_cancelled(emulator)


async def test_closing_a_synchronous_stream_cancels_its_job(
    openai_client: openai.OpenAI, emulator: Emulator
) -> None:
    def run() -> None:
        with openai_client as client:
            stream: Any = client.chat.completions.create(**HANGING, stream=True)
            next(stream)
            stream.close()

    await asyncio.to_thread(run)
    await only_job(emulator)
    await check_cancelled(emulator)


async def test_the_clients_timeout_cancels_the_job(
    async_openai_client: openai.AsyncOpenAI,
    openai_client: openai.OpenAI,
    emulator: Emulator,
    let_time_pass: Callable[[], None],
) -> None:
    queue, impatient = emulator.queue, {**HANGING, "timeout": HUNG_S}
    asking = asyncio.create_task(async_openai_client.chat.completions.create(**impatient))
    await only_job(emulator)
    let_time_pass()
    with pytest.raises(openai.APITimeoutError):
        await asking
    create: Any = openai_client.chat.completions.create
    asking = asyncio.create_task(asyncio.to_thread(create, **impatient))
    await queue.changed.wait_for(lambda: len(queue.jobs) == 2, HUNG_S)
    let_time_pass()
    with openai_client, pytest.raises(openai.APITimeoutError):
        await asking
    await check_cancelled(emulator)


URL = "http://any/v1/"
STREAM: dict[str, Any] = {
    "method": "POST",
    "url": f"{URL}chat/completions",
    "json": HANGING | {"stream": True},
}


@pytest.mark.parametrize(
    ("request_args", "error", "message"),
    [
        (STREAM | {"extensions": {"timeout": {"read": HUNG_S}}}, "ReadTimeout", "took too long"),
        ({"method": "GET", "url": f"{URL}files/f/content"}, "ReadError", "lost"),
    ],
    ids=["no further chunk", "the second part of a file fails"],
)
async def test_a_broken_stream_raises_an_error_of_the_clients_package(
    endpoint_args: dict[str, Any],
    httpx_package: Any,
    request_args: dict[str, Any],
    error: str,
    message: str,
    let_time_pass: Callable[[], None],
) -> None:
    request = httpx_package.Request(**request_args)
    raises: Any = getattr(httpx_package, error)

    def read() -> Any:
        with RunpodTransport(**endpoint_args) as transport:
            parts = iter(transport.handle_request(request).stream)
            assert next(parts)
            let_time_pass()
            with pytest.raises(raises, match=message) as raised:
                next(parts)
        return raised.value.request

    assert await asyncio.to_thread(read) is request
    async with AsyncRunpodTransport(**endpoint_args) as transport:
        parts = aiter((await transport.handle_async_request(request)).stream)
        assert await anext(parts)
        let_time_pass()
        with pytest.raises(raises, match=message) as raised:
            await anext(parts)
    assert raised.value.request is request


async def test_a_wrong_key_is_a_401_that_does_not_reveal_it(emulator: Emulator) -> None:
    with RunpodTransport("local", "rpa_wrong", emulator.api_url) as transport:
        request = httpx.Request("GET", f"{URL}models")
        response = await asyncio.to_thread(transport.handle_request, request)
        assert response.status_code == 401
        assert "rpa_wrong" not in response.read().decode() + repr(transport.__dict__)


async def test_a_cancelled_reader_cancels_the_job_even_if_the_response_stays_open(
    emulator: Emulator, endpoint_args: dict[str, Any]
) -> None:
    transport = AsyncRunpodTransport(**endpoint_args)
    response = await transport.handle_async_request(httpx.Request(**STREAM))
    has_chunk = asyncio.Event()

    async def read() -> None:
        async for _ in response.stream:
            has_chunk.set()

    reading = asyncio.create_task(read())
    await has_chunk.wait()
    reading.cancel()
    await asyncio.wait({reading})
    await transport.aclose()
    assert (await only_job(emulator)).status is Status.CANCELLED
