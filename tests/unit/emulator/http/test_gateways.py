"""The gateways for OpenAI's and LLM Engine's clients, with a function in place of a worker."""

import asyncio
import io
import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientResponse, ClientSession
from support.processes.background import poll_until
from support.processes.emulator_peer import Peer, with_options
from support.scripted_endpoint import (
    HANG,
    JobHandler,
    hang,
    only_job,
    scripted_endpoint,
    send_request,
    yield_outputs,
)

from emulator import Emulator, FailedJobHandling, Job, Options, Status

NOT_FOUND = {"error": {"message": "no model", "type": "NotFound", "param": "model", "code": 404}}
OPENAI = "/v2/local/openai/v1"
whether_streamed = pytest.mark.parametrize("stream", [True, False])


def completion(
    act: JobHandler, stream: bool = False, **options: Any
) -> AbstractAsyncContextManager[tuple[ClientResponse, Job]]:
    """Request a completion and answer it with an act."""
    return send_request(act, f"{OPENAI}/completions", body={"stream": stream}, **options)


async def test_a_request_becomes_a_job_and_a_string_becomes_plain_text() -> None:
    body = {"model": "m", "prompt": "hi"}
    asking = send_request(yield_outputs({"id": "x"}), f"{OPENAI}/completions?a=1", body=body)
    async with asking as (answer, job):
        assert (answer.status, await answer.json()) == (200, {"id": "x"})
        assert job.input == {"openai_route": "/v1/completions", "openai_input": body}
    act = yield_outputs("vllm:running 1\n")
    async with send_request(act, f"{OPENAI}/models/org/name", "GET") as (answer, job):
        assert (answer.content_type, await answer.text()) == ("text/plain", "vllm:running 1\n")
        assert job.input == {"openai_route": "/v1/models/org/name", "openai_input": None}


@pytest.mark.parametrize(
    ("stream", "outputs", "text"),
    [
        (False, [{"a": 1}, {"b": 2}], '[{"a": 1}, {"b": 2}]'),
        (True, [{"a": 1}], 'data: {"a": 1}\n\n'),
        # A worker can send half of a surrogate pair: JSON can express it, UTF-8 can't.
        (True, ["data: \ud83d\n\n"], "data: ?\n\n"),
    ],
)
async def test_the_yields_of_a_job_become_the_response(
    stream: bool, outputs: list[Any], text: str
) -> None:
    async with completion(yield_outputs(*outputs), stream) as (answer, _):
        assert (answer.status, await answer.text()) == (200, text)


async def test_a_stream_is_passed_on_byte_for_byte_as_it_arrives() -> None:
    outputs = ["data: {}\r\n\r\ndata: ü\n", "\n", ": comment\n\ndata: [DONE]\n\n"]
    gates = [asyncio.Event() for _ in outputs]

    async def act(emulator: Emulator, job: Job) -> None:
        for gate, output in zip(gates, outputs, strict=True):
            await gate.wait()
            emulator.queue.add_chunk(job, output)
        emulator.queue.complete(job, outputs)

    gates[0].set()
    async with completion(act, stream=True) as (answer, _):
        assert answer.content_type == "text/event-stream"
        for gate, output in zip(gates, outputs, strict=True):
            gate.set()  # no chunk is sent before the client has read the previous one
            expected = output.encode()
            assert await answer.content.readexactly(len(expected)) == expected
        assert await answer.content.read() == b""


def job_error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "job_failed", "param": None, "code": 500}}


@whether_streamed
@pytest.mark.parametrize(
    ("error", "failed_as", "status", "body"),
    [
        (json.dumps(NOT_FOUND), FailedJobHandling.ERROR_CODE, 404, NOT_FOUND),
        (json.dumps(NOT_FOUND), FailedJobHandling.OK, 200, NOT_FOUND),
        (json.dumps(NOT_FOUND), FailedJobHandling.SERVER_ERROR, 500, NOT_FOUND),
        *(
            (text, FailedJobHandling.ERROR_CODE, 500, job_error(text))
            for text in ("boom", '{"error": "boom"}', "17")
        ),
        *(
            (json.dumps(body), FailedJobHandling.ERROR_CODE, 500, body)
            for body in ({"error": {"code": "bad"}}, {"error": {"code": 200}})
        ),
    ],
)
async def test_a_failed_job_becomes_an_http_error_with_its_message(
    stream: bool, error: str, failed_as: FailedJobHandling, status: int, body: dict[str, Any]
) -> None:
    async with completion(yield_outputs(error=error), stream, failed_as=failed_as) as (answer, _):
        assert (answer.status, await answer.json()) == (status, body)


async def cancel(emulator: Emulator, job: Job) -> None:
    emulator.queue.cancel(job)


@whether_streamed
@pytest.mark.parametrize(
    ("act", "status", "kind", "message"),
    [
        (cancel, 499, "cancelled", "job {id} was cancelled"),
        (yield_outputs(HANG), 504, "timed_out", "job {id}: the job's executionTimeout has expired"),
    ],
)
async def test_a_job_that_the_platform_ends_is_an_error_with_its_reason(
    stream: bool, act: JobHandler, status: int, kind: str, message: str
) -> None:
    async with completion(act, stream, execution_timeout_s=0.02) as (answer, job):
        error = {"message": message.format(id=job.id), "type": kind, "param": None, "code": status}
        assert (answer.status, await answer.json()) == (status, {"error": error})


@whether_streamed
@pytest.mark.parametrize(
    ("cancel", "status"), [(True, Status.CANCELLED), (False, Status.COMPLETED)]
)
async def test_a_client_that_hangs_up_cancels_its_job_unless_configured_otherwise(
    session: aiohttp.ClientSession, tmp_path: Path, stream: bool, cancel: bool, status: Status
) -> None:
    log = tmp_path / "requests"
    options = Options(cancel_on_disconnect=cancel, request_log=log)
    async with scripted_endpoint(hang, options) as emulator:
        asking = asyncio.create_task(
            session.post(f"{emulator.openai_url}/completions", json={"stream": stream})
        )
        job = await only_job(emulator)
        await job.changed.wait_for(lambda: job.has_unread_chunks)
        if stream:
            (await asking).close()
        asking.cancel()
        await asyncio.wait([asking])
        await poll_until(lambda: '"status": 499' in log.read_text())
        emulator.queue.complete(job, None)
        assert job.status is status
        assert emulator.queue.get_worker("w").pending_stops == ([job.id] if cancel else [])


async def test_a_stream_that_was_read_to_its_last_event_is_not_cancelled() -> None:
    """Clients hang up after the last event, before the worker's final post."""
    hung_up = asyncio.Event()

    async def act(emulator: Emulator, job: Job) -> None:
        emulator.queue.add_chunk(job, "data: [DONE]\n\n")
        await hung_up.wait()
        emulator.queue.complete(job, None)

    async with completion(act, stream=True) as (answer, job):
        assert await answer.text() == "data: [DONE]\n\n"
        answer.close()
        hung_up.set()
        await job.wait_for_end()
        assert job.status is Status.COMPLETED


async def begin_and_lose_worker(emulator: Emulator, job: Job) -> None:
    await hang(emulator, job)
    emulator.queue.handle_worker_exit(emulator.queue.get_worker("w"))


@pytest.mark.parametrize(
    ("act", "timeout_s", "kind", "message"),
    [
        (begin_and_lose_worker, 600, "job_failed", "w exited while it ran this job"),
        (hang, 0.05, "timed_out", "job {id}: the job's executionTimeout has expired"),
    ],
)
async def test_a_stream_that_the_platform_ends_closes_with_an_error_event(
    act: JobHandler, timeout_s: float, kind: str, message: str
) -> None:
    async with completion(act, stream=True, execution_timeout_s=timeout_s) as (answer, job):
        beginning, text = (await answer.text()).split("data: ")[1:]
        error = json.loads(text)["error"]
        assert (answer.status, beginning) == (200, "1\n\n")
        assert (error["type"], error["message"]) == (kind, message.format(id=job.id))


@with_options(stream_poll_s=600, gateway_timeout_s=0.02)
@pytest.mark.parametrize(
    ("method", "path", "stream"),
    [
        ("POST", "/openai/v1/completions", False),
        ("POST", "/openai/v1/completions", True),
        ("GET", "/status-sync/{job}?wait=300000", False),
        ("GET", "/stream/{job}", True),
    ],
)
async def test_a_response_that_does_not_begin_in_time_is_a_page_with_524_and_its_job_continues(
    peer: Peer, method: str, path: str, stream: bool
) -> None:
    job = await peer.run() if method == "GET" else None
    url, body = peer.url(path.format(job=job)), {"input": 1, "stream": stream}
    async with peer.session.request(method, url, json=body) as answer:
        assert (answer.status, answer.content_type) == (524, "text/html")
        assert (await answer.text()).startswith("<!DOCTYPE html>")
    (job,) = peer.queue.jobs
    assert await peer.take() == job
    await peer.post_done(job, output=1)
    assert (await peer.status_object(job))["output"] == 1


async def test_the_gateways_timeout_ends_when_a_stream_has_begun(peer: Peer) -> None:
    url = peer.url("/openai/v1/completions")
    asking = asyncio.create_task(peer.session.post(url, json={"stream": True}))
    await poll_until(lambda: peer.queue.jobs)
    job = await peer.take()
    await peer.post_chunk(job, "data: 1\n\n")
    async with await asking as answer:
        peer.advance_clock(300)
        await peer.post_chunk(job, "data: [DONE]\n\n")
        assert (answer.status, await answer.text()) == (200, "data: 1\n\ndata: [DONE]\n\n")


# The routes of LLM Engine's client, with a function in place of a worker:


STREAM = "/v1/llm/completions-stream?model_endpoint_name=m"
CONTENT = "/v1/files/file-1/content"


# The routes exist at the root, as on LLM Engine's own server, and below the endpoint.
@pytest.mark.parametrize("base", ["", "/v2/local"])
@pytest.mark.parametrize(
    ("method", "route", "body"),
    [
        ("POST", "/v1/llm/completions-sync?model_endpoint_name=org/m%20x", {"top_k": None}),
        ("DELETE", "/v1/llm/model-endpoints/a%3Fb%25c", None),
        ("PUT", "/v2/batch-completions/b", {"labels": {}}),
        ("GET", "/v1/files?limit=2", None),
    ],
)
async def test_a_request_becomes_a_job_with_its_route_query_method_and_body(
    base: str, method: str, route: str, body: dict[str, Any] | None
) -> None:
    async with send_request(yield_outputs({"id": "x"}), base + route, method, body) as (
        answer,
        job,
    ):
        assert (answer.status, await answer.json()) == (200, {"id": "x"})
        assert job.input == {"route": route, "method": method, "body": body}


async def test_a_stream_has_the_workers_events_only() -> None:
    texts = ['data: {"output": "data: x"}\n\n', "data: 2\n\ndata: 3\n\n"]
    decoded = [[{"a": 1}, {"b": 2}], [{"c": 3}]]
    async with send_request(yield_outputs(*texts, *decoded), STREAM) as (answer, _):
        assert answer.content_type == "text/event-stream"
        events = 'data: {"a": 1}\n\ndata: {"b": 2}\n\ndata: {"c": 3}\n\n'
        assert await answer.text() == "".join(texts) + events


async def test_a_stream_that_the_platform_ends_closes_with_an_error_event_unless_it_has_one() -> (
    None
):
    async with send_request(yield_outputs("data: 1\n\n", error="w exited"), STREAM) as (
        answer,
        job,
    ):
        beginning, text = (await answer.text()).split("data: ")[1:]
    assert (answer.status, beginning) == (200, "1\n\n")
    event = json.loads(text)
    assert event["error"]["content"].pop("timestamp")
    error = {"status_code": 500, "content": {"error": "w exited"}}
    assert event == {"request_id": job.id, "error": error}
    sent = 'data: 1\n\ndata: {"request_id": "r", "error": {"status_code": 500}}\n\n'
    async with send_request(yield_outputs(sent, error="no model"), STREAM) as (answer, _):
        assert await answer.text() == sent


def error(code: object) -> str:
    return json.dumps({"error": {"message": "no", "code": code}})


@pytest.mark.parametrize(("method", "path"), [("GET", CONTENT), ("POST", STREAM)])
@pytest.mark.parametrize(
    ("text", "status", "code"),
    [
        *((error(code), code, code) for code in (400, 503)),
        (error(422), 400, 422),
        *((error(code), 500, code) for code in ("bad", 200, 499)),
        ("no", 500, 500),
    ],
)
async def test_a_failed_job_becomes_an_error_in_the_clients_format(
    method: str, path: str, text: str, status: int, code: object
) -> None:
    # This option has no effect on these routes.
    act, failed_as = yield_outputs(error=text), FailedJobHandling.OK
    async with send_request(act, path, method, failed_as=failed_as) as (answer, _):
        body = await answer.json()
        assert (answer.status, body["detail"]) == (status, "no")
        assert (body["error"]["message"], body["error"]["code"]) == ("no", code)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer secret"}, 400),
        ({"x-api-key": "secret"}, 400),
        ({"Authorization": "basic c2VjcmV0Og=="}, 400),  # "secret:"
        ({"Authorization": "Basic OnNlY3JldA=="}, 401),  # ":secret"
        ({"Authorization": "Basic secret"}, 401),
        ({"Authorization": "Basic /w=="}, 401),  # not UTF-8
        ({"x-api-key": "secret2"}, 401),
        ({}, 401),
    ],
)
async def test_the_key_is_accepted_in_each_form_that_a_client_sends(
    session: ClientSession, headers: dict[str, str], status: int
) -> None:
    async with Emulator(Options(api_key="secret")) as emulator:
        url = f"{emulator.root_url}/v1/files"
        async with session.post(url, data="{", headers=headers) as answer:
            assert (answer.status, [*await answer.json()]) == (status, ["detail"])


async def test_a_closed_endpoint_responds_with_503_and_has_no_other_routes(
    session: ClientSession,
) -> None:
    async with Emulator() as emulator:
        emulator.queue.close()
        async with session.get(f"{emulator.root_url}/v1/files") as answer:
            body = {"detail": "the endpoint is shutting down"}
            assert (answer.status, await answer.json()) == (503, body)
        for path in ("/v1/models", "/v1/llm", "/v1/filesystem", "/v2/other"):
            async with session.post(emulator.root_url + path) as answer:
                assert answer.status == 404


# Files:


async def test_a_form_becomes_a_body_with_its_file_in_base64(session: ClientSession) -> None:
    form = aiohttp.FormData({"purpose": "batch", "other": "x"}, quote_fields=False)
    form.add_field("file", b"\0\xff\r\n", filename="ä.bin", content_type="text/csv")
    async with (
        scripted_endpoint(yield_outputs({"id": "x"})) as emulator,
        session.post(f"{emulator.root_url}/v1/files", data=form) as answer,
    ):
        assert (answer.status, await answer.json()) == (200, {"id": "x"})
        job = await only_job(emulator)
        body = {"purpose": "batch", "filename": "ä.bin", "content_base64": "AP8NCg=="}
        assert job.input == {"route": "/v1/files", "method": "POST", "body": body}


FORM = {"Content-Type": "multipart/form-data; boundary=b"}
FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
END = b"\r\n--b--\r\n"


@pytest.mark.parametrize(
    ("body", "headers", "message"),
    [
        (b"x" * 20_000_001, {}, "the body has 20,000,001 bytes, and 20,000,000 is the most"),
        (b"no form", FORM, "the form can't be read"),
        (FILE + b"ends he", FORM, "the form can't be read"),
        (FILE.replace(b'; filename="a"', b"") + END, FORM, "must have a file"),
        (FILE + b"x" * 14_000_001 + END, FORM, "at most 14,000,000"),
        (FILE + b"x" * 64_000_001 + END, FORM, "64000000"),
    ],
    ids=range(6),
)
async def test_a_body_that_cannot_be_a_job_is_refused_in_the_clients_format(
    session: ClientSession, body: bytes, headers: dict[str, str], message: str
) -> None:
    async with Emulator(Options(oversize_status=413)) as emulator:
        url = f"{emulator.root_url}/v1/files"
        async with session.post(url, data=io.BytesIO(body), headers=headers) as answer:
            refusal = await answer.json()
        assert (answer.status, [*refusal]) == (400, ["detail"])
        assert message in refusal["detail"]
        assert emulator.queue.jobs == {}


@pytest.mark.parametrize(
    ("outputs", "content"),
    [
        ([""], ""),
        (["a", '"b\n', "ü" * 300_000], 'a"b\n' + "ü" * 300_000),
        # Binary content.
        ([{"content_base64": "AP8A"}, {"content_base64": "/w=="}], "AP8A/w=="),
    ],
    ids=range(3),
)
async def test_the_parts_of_content_are_joined(outputs: list[Any], content: str) -> None:
    async with send_request(yield_outputs(*outputs), CONTENT, "GET") as (answer, job):
        assert (answer.status, await answer.json()) == (200, {"id": "file-1", "content": content})
        assert job.input == {"route": CONTENT, "method": "GET", "body": None}
