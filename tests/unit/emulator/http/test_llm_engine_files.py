"""Files as LLM Engine's client sends and reads them, with a function in place of a worker."""

import io
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from support.processes.scripted_emulator import only_job, served, yielding

from emulator import Emulator, Options

FORM = {"Content-Type": "multipart/form-data; boundary=b"}
FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def test_a_form_becomes_a_body_with_the_file_in_base64_and_the_purpose(
    http: aiohttp.ClientSession,
) -> None:
    form = aiohttp.FormData({"purpose": "batch", "other": "x"}, quote_fields=False)
    form.add_field("file", b"\0\xff\r\n", filename="ä.bin", content_type="text/csv")
    async with (
        served(yielding({"id": "x"})) as emulator,
        http.post(f"{emulator.root_url}/v1/files", data=form) as answer,
    ):
        assert (answer.status, await answer.json()) == (200, {"id": "x"})
        job = await only_job(emulator)
        body = {"purpose": "batch", "filename": "ä.bin", "content_base64": "AP8NCg=="}
        assert job.input == {"route": "/v1/files", "method": "POST", "body": body}


@pytest.mark.parametrize(
    ("body", "headers", "message"),
    [
        (b"{", {}, "the body is not JSON"),
        (b"[]", {}, "must be a JSON object"),
        (b"x" * 20_000_001, {}, "the body has 20,000,001 bytes, and 20,000,000 is the most"),
        (b"no form", FORM, "the form can't be read"),
        (FILE + b"ends he", FORM, "the form can't be read"),
        (FILE.replace(b"file", b"data") + b"\r\n--b--\r\n", FORM, "must have a file"),
        (FILE.replace(b'; filename="a"', b"") + b"\r\n--b--\r\n", FORM, "must have a file"),
        (FILE + b"x" * 14_000_001 + b"\r\n--b--\r\n", FORM, "14,000,000 is the most"),
        (FILE + b"x" * 64_000_001 + b"\r\n--b--\r\n", FORM, "64000000"),
    ],
    ids=range(9),
)
async def test_a_body_that_cannot_be_a_job_is_refused_with_words_for_the_client(
    http: aiohttp.ClientSession, body: bytes, headers: dict[str, str], message: str
) -> None:
    async with Emulator(Options(oversize_status=413)) as emulator:
        sent: dict[str, Any] = {"data": io.BytesIO(body), "headers": headers}
        async with http.post(f"{emulator.root_url}/v1/files", **sent) as answer:
            told = await answer.json()
        assert (answer.status, list(told)) == (400, ["detail"])
        assert message in told["detail"]
        assert emulator.queue.jobs == {}


@pytest.mark.parametrize("outputs", [("",), ("a",), ("a", '"b\n', "ü" * 300_000)])
async def test_the_parts_of_a_content_are_joined(
    http: aiohttp.ClientSession, outputs: tuple[str, ...]
) -> None:
    async with (
        served(yielding(*outputs)) as emulator,
        http.get(f"{emulator.root_url}/v1/files/file-1/content") as answer,
    ):
        assert answer.status == 200
        assert await answer.json() == {"id": "file-1", "content": "".join(outputs)}
        job = await only_job(emulator)
        route = "/v1/files/file-1/content"
        assert job.input == {"route": route, "method": "GET", "body": None}


async def test_a_content_that_is_no_text_comes_as_base64(http: aiohttp.ClientSession) -> None:
    parts = [{"content_base64": "AP8A"}, {"content_base64": "/w=="}]
    async with (
        served(yielding(*parts)) as emulator,
        http.get(f"{emulator.root_url}/v1/files/file-1/content") as answer,
    ):
        assert await answer.json() == {"id": "file-1", "content": "AP8A/w=="}
