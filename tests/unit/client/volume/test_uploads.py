"""Uploads too large for a job: through the proxy, the transports and LLM Engine's class."""

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import httpx2
import openai
import pytest
from support.network import cutting_proxy
from support.processes.background import HUNG_S
from support.scripted_endpoint import OutputsFunction, run_proxy
from unit.client.conftest import Mount

from emulator import Emulator
from llm_worker_client import AsyncRunpodTransport, File, RunpodTransport, configure
from llm_worker_client.mapping.forms import MAX_FILE_BYTES
from llm_worker_client.proxy import MAX_BODY_BYTES
from llm_worker_client.volume import NoSpace, Volume

SIZE = MAX_FILE_BYTES + 1_234_567
CREATED = {"object": "file", "created_at": 0, "status": "processed"}


@pytest.fixture(scope="module")
def content() -> bytes:
    return os.urandom(SIZE)


def key_of(id: str) -> str:
    return base64.urlsafe_b64decode(id).decode()


@pytest.fixture
def answer(mount: Mount) -> OutputsFunction:
    """Return answers about files of the volume; the id of a file encodes its key."""

    def answer(job_input: Any) -> list[Any]:
        path, _, query = job_input["openai_route"].partition("?")
        if path == "/v1/files":
            body = job_input["openai_input"]
            size = (mount.directory / body["path"]).stat().st_size
            id = base64.urlsafe_b64encode(body["path"].encode()).decode()
            fields = {"filename": body["filename"], "purpose": body.get("purpose", "fine-tune")}
            return [{**CREATED, **fields, "id": id, "bytes": size, "size": size}]
        content = mount.read(key_of(path.split("/")[3]))
        if not path.endswith("/content"):
            return [{"bytes": len(content)}]
        offset, limit = (int(pair.partition("=")[2]) for pair in query.split("&"))
        part = content[offset : offset + limit]
        return [{"content_base64": base64.b64encode(part).decode()}]

    return answer


def create_client(transport: Any) -> openai.AsyncOpenAI:
    http: Any = httpx2.AsyncClient(transport=transport, timeout=HUNG_S)
    return openai.AsyncOpenAI(api_key="any", http_client=http, max_retries=0)


@pytest.fixture(params=["proxy", "transport"])
async def async_openai_client(
    request: pytest.FixtureRequest, emulator: Emulator, endpoint_args: dict[str, Any]
) -> AsyncIterator[openai.AsyncOpenAI]:
    if request.param == "proxy":
        async with (
            run_proxy(emulator) as url,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
        ):
            yield client
        return
    async with create_client(AsyncRunpodTransport(**endpoint_args)) as client:
        yield client


@pytest.mark.usefixtures("_set_volume_environ")
async def test_a_large_file_is_uploaded_and_downloaded_through_the_volume(
    async_openai_client: openai.AsyncOpenAI, mount: Mount, content: bytes
) -> None:
    files = async_openai_client.files
    file = await files.create(file=("rows.jsonl", content), purpose="batch")
    assert (file.filename, file.bytes, file.purpose) == ("rows.jsonl", SIZE, "batch")
    assert mount.read(key_of(file.id)) == content
    assert (await files.content(file.id)).read() == content
    headers = {"Range": "bytes=100-1099"}
    found = await files.with_raw_response.content(file.id, extra_headers=headers)
    assert (found.status_code, found.content) == (206, content[100:1100])
    assert found.headers["content-range"] == f"bytes 100-1099/{SIZE}"


async def test_a_large_file_is_refused_without_a_volume_and_the_missing_variable_is_named(
    async_openai_client: openai.AsyncOpenAI, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "user_a")
    with pytest.raises(openai.APIStatusError, match=r"AWS_SECRET_ACCESS_KEY: .*S3 API") as raised:
        await async_openai_client.files.create(file=("rows.jsonl", content), purpose="batch")
    assert raised.value.status_code == 413


@pytest.mark.usefixtures("_set_volume_environ")
@pytest.mark.parametrize("async_openai_client", ["transport"], indirect=True)
async def test_a_volume_that_refuses_the_keys_is_a_502(
    async_openai_client: openai.AsyncOpenAI, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(openai.APIStatusError, match="secret is not that of") as raised:
        await async_openai_client.files.create(file=("rows.jsonl", content), purpose="batch")
    assert raised.value.status_code == 502


@pytest.mark.usefixtures("_set_volume_environ")
@pytest.mark.parametrize("async_openai_client", ["transport"], indirect=True)
async def test_a_full_volume_is_a_507(
    async_openai_client: openai.AsyncOpenAI, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def upload(*_: object) -> str:
        raise NoSpace("The volume is full.")

    monkeypatch.setattr(Volume, "upload_by_digest", upload)
    with pytest.raises(openai.APIStatusError, match="The volume is full") as raised:
        await async_openai_client.files.create(file=("rows.jsonl", content), purpose="batch")
    assert raised.value.status_code == 507


async def test_a_synchronous_transport_accepts_its_own_volume(
    endpoint_args: dict[str, Any], mount: Mount, content: bytes
) -> None:
    def upload() -> int:
        with mount.open() as remote:
            transport: Any = RunpodTransport(**endpoint_args, volume=remote)
            http = httpx2.Client(transport=transport, timeout=HUNG_S)
            with openai.OpenAI(api_key="any", http_client=http, max_retries=0) as client:
                return client.files.create(file=("a.bin", content), purpose="user_data").bytes

    assert await asyncio.to_thread(upload) == SIZE


@pytest.mark.usefixtures("_set_volume_environ")
async def test_llm_engines_class_uploads_a_large_file(
    endpoint_args: dict[str, Any], mount: Mount, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "rows.csv").write_bytes(content)
    configure(**endpoint_args)

    def upload() -> str:
        with (tmp_path / "rows.csv").open("rb") as file:
            return File.upload(file).id

    try:
        key = key_of(await asyncio.to_thread(upload))
    finally:
        configure()
    assert (key.endswith(".csv"), mount.read(key)) == (True, content)


async def test_without_a_volume_the_proxy_refuses_a_very_large_body(emulator: Emulator) -> None:
    async with run_proxy(emulator) as url, httpx.AsyncClient(timeout=HUNG_S) as client:
        files = {"file": ("a", b"x" * MAX_BODY_BYTES)}
        answer = await client.post(f"{url}/v1/files", files=files)
    assert (answer.status_code, "Set RUNPOD_VOLUME_ID" in answer.text) == (413, True)


async def test_parts_that_a_caller_sent_before_it_hung_up_are_not_sent_again(
    endpoint_args: dict[str, Any], mount: Mount, content: bytes
) -> None:
    port = int(mount.server.url.rpartition(":")[2])
    with cutting_proxy(port) as network, mount.open(url=network.url, part_size=2**18) as remote:
        async with create_client(AsyncRunpodTransport(**endpoint_args, volume=remote)) as client:
            upload: dict[str, Any] = {"file": ("a.dat", content), "purpose": "user_data"}
            sending = asyncio.create_task(client.files.create(**upload))
            while network.up < SIZE // 3:
                await asyncio.sleep(0.001)
            sending.cancel()
            await asyncio.wait({sending})
            file = await client.files.create(**upload)
    assert file.bytes == SIZE
    # Four parts may have been in transit.
    assert network.up < SIZE + 5 * 2**18 + 500_000
