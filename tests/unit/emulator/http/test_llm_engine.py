"""The routes of LLM Engine's client, with a function in place of a worker."""

import io
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientSession
from support.scripted_endpoint import only_job, scripted_endpoint, send_request, yield_outputs

from emulator import Emulator, FailedJobHandling, Options

STREAM = "/v1/llm/completions-stream?model_endpoint_name=m"
CONTENT = "/v1/files/file-1/content"


# The routes exist at the root, as on LLM Engine's own server, and below the endpoint.
@pytest.mark.parametrize("base", ["", "/v2/local"])
@pytest.mark.parametrize(
    ("method", "route", "body"),
    [
        ("POST", "/v1/llm/completions-sync?model_endpoint_name=org/m%20x", {"top_k": None}),
        ("DELETE", "/v1/llm/model-endpoints/a%3Fb%25c", None),
        ("PUT", "/v1/llm/model-endpoints/m", {"labels": {}}),
        ("GET", "/v2/batch-completions/b", None),
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
        *((error(code), code, code) for code in (400, 401, 404, 429, 503)),
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
        (b"{", {}, "the body is not JSON"),
        (b"x" * 20_000_001, {}, "the body has 20,000,001 bytes, and 20,000,000 is the most"),
        (b"no form", FORM, "the form can't be read"),
        (FILE + b"ends he", FORM, "the form can't be read"),
        (FILE.replace(b'; filename="a"', b"") + END, FORM, "must have a file"),
        (FILE + b"x" * 14_000_001 + END, FORM, "at most 14,000,000"),
        (FILE + b"x" * 64_000_001 + END, FORM, "64000000"),
    ],
    ids=range(7),
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
