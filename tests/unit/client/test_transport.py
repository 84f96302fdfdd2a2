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
from support.scripted_endpoint import HANGS, Answer, Failed, only_job

from emulator import Emulator, Status
from llm_worker_client import AsyncRunpodTransport, RunpodTransport
from llm_worker_client.mapping.requests import CONTENT_PART

WORDS = ["one", " two"]
ASKED: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Count."}]}
HANGING = {**ASKED, "model": HANGS}
CHAT = {"id": "c", "object": "chat.completion", "created": 0, "model": "m"}
ERROR = {"message": "no such model", "type": "NotFoundError", "param": "model", "code": 404}
PART = {"content_base64": base64.b64encode(bytes(CONTENT_PART)).decode()}


def chunk(text: str) -> str:
    choice = {"index": 0, "delta": {"content": text}}
    event = {**CHAT, "object": "chat.completion.chunk", "choices": [choice]}
    return f"data: {json.dumps(event)}\n\n"


@pytest.fixture
def answer() -> Answer:
    """Answer as a worker would: the name of the model says what happens."""

    def answer(given: Any) -> list[Any]:
        body = given["openai_input"]
        if "/content" in given["openai_route"]:
            return [PART if "offset=0" in given["openai_route"] else Failed("lost")]
        if body is None:
            return [{"object": "list", "data": [{"id": "m", "object": "model"}]}]
        if body["model"] == "missing":
            return [Failed(json.dumps({"error": ERROR}))]
        if body["model"] == HANGS:
            return [chunk("one"), HANGS] if body.get("stream") else [HANGS]
        if body.get("stream"):
            return [*map(chunk, WORDS), "data: [DONE]\n\n"]
        return [{**CHAT, "choices": [{"index": 0, "message": {"content": "".join(WORDS)}}]}]

    return answer


@pytest.fixture(params=[httpx, httpx2], ids=["httpx", "httpx2"])
def httpx_package(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
async def async_openai_client(
    httpx_package: Any, deployed: dict[str, Any]
) -> AsyncIterator[openai.AsyncOpenAI]:
    http = httpx_package.AsyncClient(transport=AsyncRunpodTransport(**deployed))
    async with openai.AsyncOpenAI(api_key="any", http_client=http, max_retries=0) as opened:
        yield opened


@pytest.fixture
def openai_client(httpx_package: Any, deployed: dict[str, Any]) -> openai.OpenAI:
    http = httpx_package.Client(transport=RunpodTransport(**deployed))
    return openai.OpenAI(api_key="any", http_client=http, max_retries=0)


async def test_the_asyncio_client_chats_and_lists(async_openai_client: openai.AsyncOpenAI) -> None:
    create: Any = async_openai_client.chat.completions.create
    assert (await create(**ASKED)).choices[0].message.content == "one two"
    stream = await create(**ASKED, stream=True)
    assert [event.choices[0].delta.content async for event in stream] == WORDS
    assert [model.id async for model in async_openai_client.models.list()] == ["m"]
    with pytest.raises(openai.NotFoundError, match="no such model"):
        await create(**{**ASKED, "model": "missing"})


async def test_the_client_without_asyncio_does_the_same(openai_client: openai.OpenAI) -> None:
    def run() -> None:
        with openai_client as client:
            create: Any = client.chat.completions.create
            assert create(**ASKED).choices[0].message.content == "one two"
            stream = create(**ASKED, stream=True)
            assert [event.choices[0].delta.content for event in stream] == WORDS
            assert [model.id for model in client.models.list()] == ["m"]
            with pytest.raises(openai.NotFoundError, match="no such model"):
                create(**{**ASKED, "model": "missing"})

    await asyncio.to_thread(run)


async def check_cancelled(emulator: Emulator) -> None:
    for job in emulator.queue.jobs.values():
        assert await job.wait_ended(HUNG_S)
        assert job.status is Status.CANCELLED


@pytest.mark.parametrize("stream", [True, False])
async def test_the_job_of_a_request_that_is_given_up_is_cancelled(
    async_openai_client: openai.AsyncOpenAI, emulator: Emulator, stream: bool
) -> None:
    create: Any = async_openai_client.chat.completions.create
    if stream:
        opened = await create(**HANGING, stream=True)
        await anext(opened)
        await opened.close()
    else:
        asking = asyncio.create_task(create(**HANGING))
        await only_job(emulator)
        asking.cancel()
    await only_job(emulator)
    await check_cancelled(emulator)


async def test_a_stream_that_is_closed_without_asyncio_is_cancelled(
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


async def test_the_clients_timeout_holds_and_cancels(
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
    await queue.arrived.wait_for(lambda: len(queue.jobs) == 2, HUNG_S)
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
    ("asked", "error", "says"),
    [
        (STREAM | {"extensions": {"timeout": {"read": HUNG_S}}}, "ReadTimeout", "took too long"),
        ({"method": "GET", "url": f"{URL}files/f/content"}, "ReadError", "lost"),
    ],
    ids=["nothing more comes", "the second part of a file fails"],
)
async def test_a_stream_that_has_begun_ends_with_an_error_of_the_clients_package(
    deployed: dict[str, Any],
    httpx_package: Any,
    asked: dict[str, Any],
    error: str,
    says: str,
    let_time_pass: Callable[[], None],
) -> None:
    request = httpx_package.Request(**asked)
    raises: Any = getattr(httpx_package, error)

    def read() -> Any:
        with RunpodTransport(**deployed) as transport:
            parts = iter(transport.handle_request(request).stream)
            assert next(parts)
            let_time_pass()
            with pytest.raises(raises, match=says) as raised:
                next(parts)
        return raised.value.request

    assert await asyncio.to_thread(read) is request
    async with AsyncRunpodTransport(**deployed) as transport:
        parts = aiter((await transport.handle_async_request(request)).stream)
        assert await anext(parts)
        let_time_pass()
        with pytest.raises(raises, match=says) as raised:
            await anext(parts)
    assert raised.value.request is request


async def test_a_wrong_account_is_an_error_that_does_not_show_the_key(emulator: Emulator) -> None:
    with RunpodTransport("local", "rpa_wrong", emulator.api_url) as transport:
        request = httpx.Request("GET", f"{URL}models")
        response = await asyncio.to_thread(transport.handle_request, request)
        assert response.status_code == 401
        assert "rpa_wrong" not in response.read().decode() + repr(transport.__dict__)


async def test_a_reader_that_is_cancelled_cancels_the_job_also_where_nobody_closes_the_response(
    emulator: Emulator, deployed: dict[str, Any]
) -> None:
    transport = AsyncRunpodTransport(**deployed)
    response = await transport.handle_async_request(httpx.Request(**STREAM))
    came = asyncio.Event()

    async def read() -> None:
        async for _ in response.stream:
            came.set()

    reading = asyncio.create_task(read())
    await came.wait()
    reading.cancel()
    await asyncio.wait({reading})
    await transport.aclose()
    assert (await only_job(emulator)).status is Status.CANCELLED
