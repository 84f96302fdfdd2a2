"""The routes of LLM Engine's client, with a function in place of a worker."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from support.processes.scripted_emulator import Act, hang, only_job, served, yielding

from emulator import Emulator, FailedAs, Job, Options, Status

STREAM = "/v1/llm/completions-stream?model_endpoint_name=m"
NOT_FOUND = {"error": {"message": "no model", "type": "NotFound", "param": "model", "code": 404}}
KEY = "secret"


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def bases(emulator: Emulator) -> list[str]:
    return [emulator.root_url, emulator.url]


@pytest.mark.parametrize("base", [0, 1])
@pytest.mark.parametrize(
    ("method", "route", "body"),
    [
        ("POST", "/v1/llm/completions-sync?model_endpoint_name=org/m%20x", {"top_k": None}),
        ("POST", "/v1/llm/batch-completions", {"model_config": {}}),
        ("GET", "/v1/llm/model-endpoints/org/m", None),
        ("DELETE", "/v1/llm/model-endpoints/a%3Fb%25c", None),
        ("PUT", "/v1/llm/fine-tunes/ft-1/cancel", None),
        ("PUT", "/v1/llm/model-endpoints/m", {"labels": {}}),
        ("POST", "/v2/batch-completions", {"content": []}),
        ("GET", "/v2/batch-completions", None),
        ("POST", "/v2/batch-completions/run", {"priority": "1"}),
        ("POST", "/v2/batch-completions/b/actions/cancel", {}),
        ("GET", "/v1/files", None),
        ("GET", "/v1/files?limit=2", None),
        ("DELETE", "/v1/files/file-1", None),
    ],
)
async def test_a_request_becomes_a_job_with_its_route_query_method_and_body(
    http: aiohttp.ClientSession, base: int, method: str, route: str, body: dict[str, Any] | None
) -> None:
    async with served(yielding({"id": "x"})) as emulator:
        sent: dict[str, Any] = {} if body is None else {"json": body}
        async with http.request(method, bases(emulator)[base] + route, **sent) as answer:
            assert (answer.status, await answer.json()) == (200, {"id": "x"})
        job = await only_job(emulator)
        assert job.input == {"route": route, "method": method, "body": body}


async def test_a_stream_is_passed_on_as_it_arrives_without_an_end_of_its_own(
    http: aiohttp.ClientSession,
) -> None:
    outputs = ['data: {"output": {"text": "data: x"}}\n\n', "data: 2\n\ndata: 3\n\n"]
    gates = [asyncio.Event() for _ in outputs]

    async def act(emulator: Emulator, job: Job) -> None:
        for gate, output in zip(gates, outputs, strict=True):
            await gate.wait()
            emulator.queue.add_chunk(job, output)
        emulator.queue.complete(job, outputs)

    async with served(act) as emulator:
        gates[0].set()
        async with http.post(emulator.root_url + STREAM, json={"prompt": "a"}) as answer:
            assert answer.content_type == "text/event-stream"
            for gate, output in zip(gates, outputs, strict=True):
                gate.set()  # no chunk is made before the client has read the one before
                expected = output.encode()
                assert await answer.content.readexactly(len(expected)) == expected
            assert await answer.content.read() == b""


async def test_decoded_events_become_events_again(http: aiohttp.ClientSession) -> None:
    async with (
        served(yielding([{"a": 1}, {"b": 2}], [{"c": 3}])) as emulator,
        http.post(emulator.root_url + STREAM, json={}) as answer,
    ):
        assert await answer.text() == 'data: {"a": 1}\n\ndata: {"b": 2}\n\ndata: {"c": 3}\n\n'


async def test_a_stream_that_the_platform_ends_closes_with_an_error_event(
    http: aiohttp.ClientSession,
) -> None:
    async with (
        served(yielding("data: 1\n\n", error="w exited")) as emulator,
        http.post(emulator.root_url + STREAM, json={}) as answer,
    ):
        text = await answer.text()
        job = await only_job(emulator)
    assert (answer.status, text.startswith("data: 1\n\ndata: ")) == (200, True)
    event = json.loads(text.removeprefix("data: 1\n\ndata: "))
    assert event["error"]["content"].pop("timestamp")
    told = {"status_code": 500, "content": {"error": "w exited"}}
    assert event == {"request_id": job.id, "error": told}


async def test_an_error_that_the_worker_has_told_is_not_told_again(
    http: aiohttp.ClientSession,
) -> None:
    told = 'data: 1\n\ndata: {"request_id": "r", "error": {"status_code": 500}}\n\n'
    async with (
        served(yielding(told, error=json.dumps(NOT_FOUND))) as emulator,
        http.post(emulator.root_url + STREAM, json={}) as answer,
    ):
        assert await answer.text() == told


def error(code: object) -> str:
    return json.dumps({"error": {"message": "no", "code": code}})


@pytest.mark.parametrize("path", ["/v1/files/file-1", "/v1/files/file-1/content", STREAM])
@pytest.mark.parametrize("failed_as", [FailedAs.ERROR_CODE, FailedAs.OK])
@pytest.mark.parametrize(
    ("text", "status", "code"),
    [
        *((error(code), code, code) for code in (400, 401, 404, 429, 500, 503)),
        *((error(code), 400, code) for code in (403, 405, 409, 413, 422)),
        *((error(code), 500, code) for code in ("bad", 200, 499, None)),
        ("no", 500, 500),
    ],
)
async def test_a_failed_job_becomes_an_error_that_the_client_knows(
    http: aiohttp.ClientSession,
    path: str,
    failed_as: FailedAs,
    text: str,
    status: int,
    code: object,
) -> None:
    method = "POST" if path == STREAM else "GET"
    async with (
        served(yielding(error=text), Options(failed_as=failed_as)) as emulator,
        http.request(method, emulator.root_url + path) as answer,
    ):
        told = await answer.json()
        assert (answer.status, told["detail"]) == (status, "no")
        assert (told["error"]["message"], told["error"]["code"]) == ("no", code)


async def cancel(emulator: Emulator, job: Job) -> None:
    emulator.queue.cancel(job)


async def hang_silently(emulator: Emulator, job: Job) -> None: ...


@pytest.mark.parametrize(
    ("act", "status", "kind"), [(cancel, 500, "cancelled"), (hang_silently, 504, "timed_out")]
)
async def test_a_job_that_the_platform_ends_is_a_server_error(
    http: aiohttp.ClientSession, act: Act, status: int, kind: str
) -> None:
    async with (
        served(act, Options(execution_timeout_s=600 if status == 500 else 0.02)) as emulator,
        http.post(f"{emulator.root_url}/v1/llm/completions-sync", json={}) as answer,
    ):
        told = await answer.json()
        assert (answer.status, told["error"]["type"]) == (status, kind)
        assert told["detail"] == told["error"]["message"]


@pytest.mark.parametrize("route", [STREAM, "/v1/llm/completions-sync"])
async def test_a_client_that_hangs_up_cancels_its_job(
    http: aiohttp.ClientSession, route: str
) -> None:
    async with served(hang) as emulator:
        asking = asyncio.create_task(http.post(emulator.root_url + route, json={}))
        job = await only_job(emulator)
        await job.changed.wait_for(lambda: job.has_unread)
        if route == STREAM:
            (await asking).close()
        asking.cancel()
        await asyncio.wait([asking])
        await job.wait_ended(60)
        assert job.status is Status.CANCELLED


@pytest.mark.parametrize("base", [0, 1])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": f"Bearer {KEY}"}, 400),
        ({"x-api-key": KEY}, 400),
        ({"Authorization": "Basic c2VjcmV0Og=="}, 400),  # "secret:"
        ({"Authorization": "basic c2VjcmV0Og==", "x-api-key": KEY}, 400),
        ({"Authorization": "Basic c2VjcmV0"}, 400),  # "secret", without a password
        ({"Authorization": "Basic OnNlY3JldA=="}, 401),  # ":secret"
        ({"Authorization": "Basic secret"}, 401),
        ({"Authorization": "Basic /w=="}, 401),  # no text
        ({"x-api-key": "secret2"}, 401),
        ({}, 401),
    ],
)
async def test_the_key_is_taken_as_the_client_sends_it(
    http: aiohttp.ClientSession, base: int, headers: dict[str, str], status: int
) -> None:
    async with Emulator(Options(api_key=KEY)) as emulator:
        url = f"{bases(emulator)[base]}/v1/files"
        async with http.post(url, data="{", headers=headers) as answer:
            told = await answer.json()
        assert (answer.status, list(told)) == (status, ["detail"])


async def test_the_platforms_own_routes_take_the_key_as_before(http: aiohttp.ClientSession) -> None:
    headers = {"Authorization": "Basic c2VjcmV0Og==", "x-api-key": KEY}
    async with (
        Emulator(Options(api_key=KEY)) as emulator,
        http.get(f"{emulator.url}/health", headers=headers) as answer,
    ):
        assert answer.status == 401
        assert list(await answer.json()) == ["error"]


async def test_an_endpoint_that_shuts_down_tells_the_client_so(http: aiohttp.ClientSession) -> None:
    async with Emulator() as emulator:
        emulator.queue.close()
        async with http.get(f"{emulator.root_url}/v1/files") as answer:
            told = {"detail": "the endpoint is shutting down"}
            assert (answer.status, await answer.json()) == (503, told)


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/models"), ("POST", "/v1/llm"), ("GET", "/v1/filesystem"), ("GET", "/v2/other")],
)
async def test_no_other_routes_are_at_the_root(
    http: aiohttp.ClientSession, method: str, path: str
) -> None:
    async with (
        Emulator() as emulator,
        http.request(method, emulator.root_url + path) as answer,
    ):
        assert answer.status == 404
        assert emulator.queue.jobs == {}
