"""`openai`, unchanged, through the proxy and through the transport, in front of `make endpoint`."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from demo_model import ANSWERS
from openai import OpenAI
from support.engine.requests import ENDLESS
from support.processes.background import HUNG_S, wait_until
from support.processes.client_proxy import ACCOUNT, ClientProxy, client_proxy
from support.processes.local_endpoint import LocalEndpoint

from llm_worker_client import RunpodTransport

COUNT = "Count to ten."
CHAT: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": COUNT}],
    "temperature": 0,
}
LINES = b"".join(
    json.dumps(
        {
            "custom_id": f"c{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {**CHAT, "max_tokens": 3},
        }
    ).encode()
    + b"\n"
    for number in range(3)
)


@pytest.fixture(scope="module")
def proxy(
    make_endpoint: LocalEndpoint, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClientProxy]:
    log = tmp_path_factory.mktemp("proxy") / "log"
    with client_proxy(make_endpoint.api_url, log) as running:
        yield running


@pytest.fixture(params=["proxy", "transport"])
def client(request: pytest.FixtureRequest, make_endpoint: LocalEndpoint) -> Iterator[OpenAI]:
    if request.param == "proxy":
        url = request.getfixturevalue("proxy").url
        with OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as made:
            yield made
        return
    transport = RunpodTransport("local", ACCOUNT, make_endpoint.api_url)
    http = httpx2.Client(transport=transport, timeout=HUNG_S)
    with OpenAI(api_key="any", http_client=http, max_retries=0) as made:
        yield made


def test_a_chat_is_the_same_whole_and_streamed(client: OpenAI) -> None:
    whole = client.chat.completions.create(**CHAT)
    assert whole.choices[0].message.content == ANSWERS[COUNT]
    events = client.chat.completions.create(**CHAT, stream=True)
    deltas = [event.choices[0].delta.content or "" for event in events]
    assert ("".join(deltas), len(deltas) > 2) == (ANSWERS[COUNT], True)


def test_responses_stream_to_their_end(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": "demo", "input": COUNT, "temperature": 0}
    *_, last = client.responses.create(**asked, stream=True)
    assert last.type == "response.completed"
    assert last.response.output_text == ANSWERS[COUNT]


def test_models_are_listed_and_embeddings_are_of_a_model_that_has_them(client: OpenAI) -> None:
    assert {"demo", "minilm"} <= {model.id for model in client.models.list()}
    assert client.models.retrieve("tiny/demo").id == "tiny/demo"
    found = client.embeddings.create(model="minilm", input=["Hi", "Hello"])
    assert [len(one.embedding) for one in found.data] == [384, 384]
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="demo", input="Hi")


def test_errors_have_their_statuses(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="gpt-4"):
        client.chat.completions.create(**{**CHAT, "model": "gpt-4"})
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(**{**CHAT, "temperature": 5}, stream=True)
    with pytest.raises(openai.NotFoundError):
        client.files.content("file-x")


def test_a_file_goes_up_is_listed_read_and_deleted(client: OpenAI) -> None:
    content = b"\0\xff\n" * 700_000
    file = client.files.create(
        file=("ä.bin", content),
        purpose="user_data",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert (file.filename, file.bytes) == ("ä.bin", len(content))
    assert file.expires_at == file.created_at + 3600
    assert client.files.content(file.id).read() == content
    assert file.id in [one.id for one in client.files.list(purpose="user_data", limit=2)]
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


def test_a_content_above_what_the_platform_keeps_of_a_job_is_read_whole(
    client: OpenAI, make_endpoint: LocalEndpoint
) -> None:
    content = bytes(range(256)) * 100_000
    inbox = make_endpoint.log.parent / "volume" / "inbox"
    inbox.mkdir(exist_ok=True)
    (inbox / "large.bin").write_bytes(content)
    made: Any = client.post("/files", body={"path": "inbox/large.bin"}, cast_to=object)
    assert client.files.content(made["id"]).read() == content


def test_a_batch_begins_by_itself_and_its_answers_are_read(client: OpenAI) -> None:
    file = client.files.create(file=("in.jsonl", LINES), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    ended = ("completed", "failed", "expired", "cancelled")
    wait_until(lambda: client.batches.retrieve(batch.id).status in ended)
    batch = client.batches.retrieve(batch.id)
    assert (batch.status, batch.output_file_id is None) == ("completed", False)
    answered = client.files.content(batch.output_file_id or "").text.splitlines()
    assert [json.loads(one)["custom_id"] for one in answered] == ["c0", "c1", "c2"]
    assert batch.id in [one.id for one in client.batches.list(limit=5)]
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)


def test_fine_tunes_are_listed_with_a_query(client: OpenAI) -> None:
    assert client.fine_tuning.jobs.list(limit=1).data == []
    with pytest.raises(openai.NotFoundError):
        client.fine_tuning.jobs.retrieve("ftjob-x")


def test_a_job_whose_caller_hangs_up_is_cancelled(
    client: OpenAI, make_endpoint: LocalEndpoint
) -> None:
    long: dict[str, Any] = {
        **{name: ENDLESS[name] for name in ("max_tokens", "n")},
        "extra_body": {"ignore_eos": True},
    }
    prompt = "Once upon a time"
    stream = client.completions.create(model="demo", prompt=prompt, stream=True, **long)
    first = next(iter(stream))
    stream.close()
    job = first.id.removeprefix("cmpl-")

    def ended() -> bool:
        found: bool = make_endpoint.control(f"jobs/{job}")["status"] == "CANCELLED"
        return found

    wait_until(ended)
