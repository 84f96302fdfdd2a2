"""`openai`, unchanged: files that no job holds go by the volume, are read, and run as batches."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai import OpenAI
from support.processes.background import HUNG_S, wait_until
from support.processes.client_proxy import ACCOUNT, client_proxy
from support.processes.local_endpoint import LocalEndpoint
from support.processes.s3_server import VOLUME_ID, S3Server, s3_server

from llm_worker_client import RunpodTransport
from llm_worker_client.mapping.forms import LARGEST_FILE
from llm_worker_client.volume import Volume

ENDED = ("completed", "failed", "expired", "cancelled")


@pytest.fixture(scope="module")
def s3(
    make_endpoint: LocalEndpoint, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[S3Server]:
    """Start the S3 API of the directory that stands for the endpoint's volume."""
    directory = make_endpoint.log.parent / "volume"
    with s3_server(directory, tmp_path_factory.mktemp("s3") / "log") as server:
        yield server


@pytest.fixture(params=["proxy", "transport"])
def client(
    request: pytest.FixtureRequest, make_endpoint: LocalEndpoint, s3: S3Server, tmp_path: Path
) -> Iterator[OpenAI]:
    if request.param == "proxy":
        with (
            client_proxy(make_endpoint.api_url, tmp_path / "log", **s3.environ) as proxy,
            OpenAI(base_url=f"{proxy.url}/v1", api_key="any", max_retries=0) as made,
        ):
            yield made
        assert s3.secret not in (tmp_path / "log").read_text()
        return
    with Volume(VOLUME_ID, url=s3.url, access_key=s3.access_key, secret=s3.secret) as volume:
        transport: Any = RunpodTransport("local", ACCOUNT, make_endpoint.api_url, volume)
        http = httpx2.Client(transport=transport, timeout=HUNG_S)
        with OpenAI(api_key="any", http_client=http, max_retries=0) as made:
            yield made


def line(number: int) -> bytes:
    chat = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    asked = {"custom_id": f"c{number}", "method": "POST", "url": "/v1/chat/completions"}
    # Spaces make it large: they are JSON, and cost the engine nothing.
    return json.dumps({**asked, "body": chat}).encode() + b" " * 100_000 + b"\n"


def test_a_batch_of_a_file_that_no_job_holds(client: openai.OpenAI) -> None:
    content = b"".join(map(line, range(150)))
    assert len(content) > LARGEST_FILE
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    assert (file.filename, file.bytes) == ("in.jsonl", len(content))
    assert file.id in [one.id for one in client.files.list(purpose="batch", limit=5)]
    assert client.files.content(file.id).read() == content
    ranged = {"Range": "bytes=-10"}
    assert client.files.content(file.id, extra_headers=ranged).read() == content[-10:]
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    wait_until(lambda: client.batches.retrieve(batch.id).status in ENDED)
    batch = client.batches.retrieve(batch.id)
    assert batch.request_counts is not None
    assert (batch.status, batch.request_counts.completed) == ("completed", 150)
