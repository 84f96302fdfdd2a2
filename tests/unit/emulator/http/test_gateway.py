"""The OpenAI gateway, with a function in place of a worker."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from support.processes.scripted_emulator import Act, hang, only_job, served, yielding

from emulator import Emulator, FailedAs, Job, LostAs, Options, Status

NOT_FOUND = {"error": {"message": "no model", "type": "NotFound", "param": "model", "code": 404}}


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def test_a_post_becomes_a_job_with_its_route_and_body(http: aiohttp.ClientSession) -> None:
    async with served(yielding({"id": "x"})) as emulator:
        body = {"model": "m", "prompt": "hi"}
        async with http.post(f"{emulator.openai_url}/completions?a=1", json=body) as answer:
            assert (answer.status, await answer.json()) == (200, {"id": "x"})
        job = await only_job(emulator)
        expected = {"openai_route": "/v1/completions", "openai_input": body}
        assert job.input == expected


async def test_a_get_becomes_a_job_without_a_body(http: aiohttp.ClientSession) -> None:
    async with served(yielding({"object": "list"})) as emulator:
        async with http.get(f"{emulator.openai_url}/models/org/name") as answer:
            assert await answer.json() == {"object": "list"}
        job = await only_job(emulator)
        expected = {"openai_route": "/v1/models/org/name", "openai_input": None}
        assert job.input == expected


async def test_a_string_answer_is_plain_text(http: aiohttp.ClientSession) -> None:
    async with (
        served(yielding("vllm:running 1\n")) as emulator,
        http.get(f"{emulator.openai_url}/metrics") as answer,
    ):
        assert (answer.content_type, await answer.text()) == ("text/plain", "vllm:running 1\n")


async def test_a_stream_is_passed_on_byte_for_byte_as_it_arrives(
    http: aiohttp.ClientSession,
) -> None:
    outputs = ["data: {}\r\n\r\ndata: ü\n", "\n", ": comment\n\ndata: [DONE]\n\n"]
    gates = [asyncio.Event() for _ in outputs]

    async def act(emulator: Emulator, job: Job) -> None:
        for gate, output in zip(gates, outputs, strict=True):
            await gate.wait()
            emulator.queue.add_chunk(job, output)
        emulator.queue.complete(job, outputs)

    async with served(act) as emulator:
        body = {"stream": True}
        gates[0].set()
        async with http.post(f"{emulator.openai_url}/completions", json=body) as answer:
            assert answer.content_type == "text/event-stream"
            for gate, output in zip(gates, outputs, strict=True):
                gate.set()  # no chunk is made before the client has read the one before
                expected = output.encode()
                assert await answer.content.readexactly(len(expected)) == expected
            assert await answer.content.read() == b""


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("error", "failed_as", "status", "body"),
    [
        (json.dumps(NOT_FOUND), FailedAs.ERROR_CODE, 404, NOT_FOUND),
        (json.dumps(NOT_FOUND), FailedAs.OK, 200, NOT_FOUND),
        (json.dumps(NOT_FOUND), FailedAs.SERVER_ERROR, 500, NOT_FOUND),
        ("boom", FailedAs.ERROR_CODE, 500, None),
        ('{"error": "boom"}', FailedAs.ERROR_CODE, 500, None),
        ("17", FailedAs.ERROR_CODE, 500, None),
        ('{"error": {"code": "bad"}}', FailedAs.ERROR_CODE, 500, {"error": {"code": "bad"}}),
        ('{"error": {"code": 200}}', FailedAs.ERROR_CODE, 500, {"error": {"code": 200}}),
    ],
)
async def test_a_failed_job_becomes_an_http_error_with_its_own_words(
    http: aiohttp.ClientSession,
    stream: bool,
    error: str,
    failed_as: FailedAs,
    status: int,
    body: dict[str, Any] | None,
) -> None:
    if body is None:
        body = {"error": {"message": error, "type": "job_failed", "param": None, "code": 500}}
    async with (
        served(yielding(error=error), Options(failed_as=failed_as)) as emulator,
        http.post(f"{emulator.openai_url}/completions", json={"stream": stream}) as answer,
    ):
        assert (answer.status, await answer.json()) == (status, body)


async def test_a_job_that_fails_after_its_first_chunk_ends_the_stream_with_an_error_event(
    http: aiohttp.ClientSession,
) -> None:
    async with (
        served(yielding("data: 1\n\n", error=json.dumps(NOT_FOUND))) as emulator,
        http.post(f"{emulator.openai_url}/completions", json={"stream": True}) as answer,
    ):
        assert answer.status == 200
        text = await answer.text()
        assert text == f"data: 1\n\ndata: {json.dumps(NOT_FOUND)}\n\n"


async def test_a_cancelled_job_is_an_error_for_its_openai_client(
    http: aiohttp.ClientSession,
) -> None:
    async def act(emulator: Emulator, job: Job) -> None:
        emulator.queue.cancel(job)

    async with (
        served(act) as emulator,
        http.post(f"{emulator.openai_url}/completions", json={}) as answer,
    ):
        assert (answer.status, (await answer.json())["error"]["type"]) == (499, "cancelled")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("cancel", "status"), [(True, Status.CANCELLED), (False, Status.IN_PROGRESS)]
)
async def test_a_client_that_hangs_up_cancels_its_job_unless_configured_otherwise(
    http: aiohttp.ClientSession, stream: bool, cancel: bool, status: Status
) -> None:
    async with served(hang, Options(cancel_on_disconnect=cancel)) as emulator:
        asking = asyncio.create_task(
            http.post(f"{emulator.openai_url}/completions", json={"stream": stream})
        )
        job = await only_job(emulator)
        await job.changed.wait_for(lambda: job.has_unread)
        if stream:
            (await asking).close()
        asking.cancel()
        await asyncio.wait([asking])
        await job.wait_ended(60 if cancel else 0.1)
        assert job.status is status
        assert emulator.queue.worker("w").take_stops() == ([job.id] if cancel else [])


async def test_several_yields_of_an_unstreamed_answer_become_a_list(
    http: aiohttp.ClientSession,
) -> None:
    async with (
        served(yielding({"a": 1}, {"b": 2})) as emulator,
        http.post(f"{emulator.openai_url}/completions", json={}) as answer,
    ):
        assert await answer.json() == [{"a": 1}, {"b": 2}]


async def test_a_decoded_event_in_a_stream_becomes_an_event(http: aiohttp.ClientSession) -> None:
    async with (
        served(yielding({"a": 1})) as emulator,
        http.post(f"{emulator.openai_url}/completions", json={"stream": True}) as answer,
    ):
        assert await answer.text() == 'data: {"a": 1}\n\n'


async def lose_worker(emulator: Emulator, job: Job) -> None:
    emulator.queue.lose(emulator.queue.worker("w"))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("failed_as", "status"),
    [(FailedAs.ERROR_CODE, 504), (FailedAs.SERVER_ERROR, 500), (FailedAs.OK, 200)],
)
async def test_a_job_that_timed_out_is_a_gateway_timeout_for_its_openai_client(
    http: aiohttp.ClientSession, stream: bool, failed_as: FailedAs, status: int
) -> None:
    async def hang_silently(emulator: Emulator, job: Job) -> None: ...

    options = Options(execution_timeout_s=0.02, failed_as=failed_as)
    async with (
        served(hang_silently, options) as emulator,
        http.post(f"{emulator.openai_url}/completions", json={"stream": stream}) as answer,
    ):
        job = await only_job(emulator)
        assert answer.status == status
        assert (await answer.json())["error"] == {
            "message": f"job {job.id}: the job's executionTimeout is over",
            "type": "timed_out",
            "param": None,
            "code": 504,
        }


@pytest.mark.parametrize(
    ("then", "kind", "message"),
    [
        (lose_worker, "job_failed", "w exited while it ran this job"),
        (None, "timed_out", "job {id}: the job's executionTimeout is over"),
    ],
)
async def test_a_stream_that_the_platform_ends_closes_with_an_error_event(
    http: aiohttp.ClientSession, then: Act | None, kind: str, message: str
) -> None:
    async def act(emulator: Emulator, job: Job) -> None:
        await hang(emulator, job)
        if then is not None:
            await then(emulator, job)

    async with (
        served(act, Options(execution_timeout_s=600 if then else 0.05)) as emulator,
        http.post(f"{emulator.openai_url}/completions", json={"stream": True}) as answer,
    ):
        job = await only_job(emulator)
        text = await answer.text()
        assert (answer.status, text.startswith("data: 1\n\ndata: ")) == (200, True)
        error = json.loads(text.removeprefix("data: 1\n\ndata: "))["error"]
        assert (error["type"], error["message"]) == (kind, message.format(id=job.id))


async def test_a_stream_goes_on_where_its_job_is_queued_again(http: aiohttp.ClientSession) -> None:
    async def act(emulator: Emulator, job: Job) -> None:
        queue = emulator.queue
        queue.add_chunk(job, "data: 1\n\n")
        queue.lose(queue.worker("w"))
        queue.take(queue.worker("other"), 1)
        await asyncio.sleep(0)
        queue.add_chunk(job, "data: 2\n\n")
        queue.complete(job, None)

    async with (
        served(act, Options(lost_as=LostAs.REQUEUED)) as emulator,
        http.post(f"{emulator.openai_url}/completions", json={"stream": True}) as answer,
    ):
        assert await answer.text() == "data: 1\n\ndata: 2\n\n"


@pytest.mark.parametrize("stream", [True, False])
async def test_what_is_no_text_reaches_the_client_as_good_as_it_can(
    http: aiohttp.ClientSession, stream: bool
) -> None:
    """A worker can send half of a surrogate pair: JSON can write it, UTF-8 can't."""
    async with (
        served(yielding("data: \ud83d\n\n")) as emulator,
        http.post(f"{emulator.openai_url}/completions", json={"stream": stream}) as answer,
    ):
        assert answer.status == 200
        assert (await answer.read()).startswith(b"data: ")
