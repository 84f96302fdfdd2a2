"""An endpoint whose worker starts after the gateway's timeout: results, and numbers of jobs."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from support.processes.background import HUNG_S
from support.scripted_endpoint import (
    ACCOUNT,
    OutputsFunction,
    make_handler,
    run_proxy,
    scripted_endpoint,
)

from emulator import Emulator, Options, Status
from llm_worker_client import AsyncRunpodTransport, RunpodTransport

# Emulated timeouts of the gateway in seconds: less than each of its waits, and more than the wait
# of the client's calls of /runsync, which is one second.
SHORT, LONG = 0.02, 1.5
ARGUMENTS: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Count."}]}
CHAT = {"id": "c", "object": "chat.completion", "created": 0, "model": "m"}
CHUNK = {**CHAT, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}}]}


@pytest.fixture
def answer() -> OutputsFunction:
    def answer(job_input: Any) -> list[Any]:
        body = job_input.get("openai_input")
        if body is None:
            return [{"object": "list", "data": [{"id": "m", "object": "model"}]}]
        if body.get("stream"):
            return [f"data: {json.dumps(CHUNK)}\n\n", "data: [DONE]\n\n"]
        return [{**CHAT, "choices": [{"index": 0, "message": {"content": "one"}}]}]

    return answer


@pytest.fixture(params=[SHORT])
def gateway_timeout_s(request: pytest.FixtureRequest) -> float:
    return float(request.param)


@pytest.fixture
def warm_up_after() -> list[str]:
    """Return the text in the log of requests after which the worker starts; a test may set it."""
    return ['"status": 524']


@pytest.fixture
async def emulator(
    answer: OutputsFunction, tmp_path: Path, gateway_timeout_s: float, warm_up_after: list[str]
) -> AsyncIterator[Emulator]:
    log = tmp_path / "requests"
    options = Options(api_key=ACCOUNT, gateway_timeout_s=gateway_timeout_s, request_log=log)
    async with scripted_endpoint(
        make_handler(answer), options, is_warm=lambda: warm_up_after[0] in log.read_text()
    ) as running:
        yield running


async def check_completed(emulator: Emulator, count: int) -> None:
    """Check that the endpoint has run this number of jobs."""
    jobs = emulator.queue.jobs.values()
    for job in jobs:
        assert await job.wait_for_end(HUNG_S)
    assert [job.status for job in jobs] == [Status.COMPLETED] * count


async def test_the_transports_return_the_result_of_one_job(
    emulator: Emulator, endpoint_args: dict[str, Any]
) -> None:
    def call_sync() -> Any:
        http = httpx2.Client(transport=RunpodTransport(**endpoint_args))
        with openai.OpenAI(api_key="any", http_client=http) as client:
            return client.chat.completions.create(**ARGUMENTS).choices[0].message.content

    assert await asyncio.to_thread(call_sync) == "one"
    await check_completed(emulator, 1)
    http = httpx2.AsyncClient(transport=AsyncRunpodTransport(**endpoint_args))
    async with openai.AsyncOpenAI(api_key="any", http_client=http) as client:
        stream = await client.chat.completions.create(**ARGUMENTS, stream=True)
        assert len([event async for event in stream]) == 1
    await check_completed(emulator, 2)


@pytest.mark.parametrize(
    ("gateway_timeout_s", "start", "count"),
    # If the gateway's timeout is shorter than the platform's shortest wait, a job's id is lost.
    [(SHORT, '"status": 524', 2), (LONG, "runsync?wait=1000", 1)],
    indirect=["gateway_timeout_s"],
)
async def test_a_read_is_answered(
    emulator: Emulator,
    endpoint_args: dict[str, Any],
    warm_up_after: list[str],
    start: str,
    count: int,
) -> None:
    warm_up_after[0] = start
    transport = AsyncRunpodTransport(**endpoint_args)
    async with httpx2.AsyncClient(transport=transport) as client:
        assert (await client.get("http://any/v1/models")).json()["data"][0]["id"] == "m"
    await check_completed(emulator, count)


@pytest.mark.parametrize("gateway_timeout_s", [LONG], indirect=True)
async def test_the_proxy_answers_jobs_and_the_platforms_synchronous_calls(
    emulator: Emulator, warm_up_after: list[str]
) -> None:
    warm_up_after[0] = "runsync?wait=1000"
    async with run_proxy(emulator) as url, httpx2.AsyncClient(timeout=HUNG_S) as client:
        body = {"input": {"openai_route": "/v1/models"}}
        paths = ["/v2/local/runsync?wait=300000", "/v1/chat/completions"]
        report, chat = await asyncio.gather(
            *(
                client.post(f"{url}{path}", json=content)
                for path, content in zip(paths, [body, ARGUMENTS], strict=True)
            )
        )
    assert (report.json()["status"], chat.json()["object"]) == ("COMPLETED", CHAT["object"])
    await check_completed(emulator, 2)
